#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace elasticdl::worker {

// A thread that Python knows: its number in the kernel, and its name.
struct PythonThread {
  pid_t id;
  std::string name;
};

struct Stack {
  std::string name;
  bool holds;                            // the interpreter's lock
  std::vector<std::string> frames;       // as faulthandler writes them, the innermost first
  std::vector<std::string> user_frames;  // `FILE:LINE, in FUNCTION`, the innermost first
};

// Writes the stacks of all threads when no Python code has run for long: then a call of native code holds the
// interpreter's lock, and no Python code can say where. Its own thread needs no lock.
//
// Each thread writes its own stack, in a handler of `signal` that Python's faulthandler registers for `channel()`: to
// read the frames of a thread that runs would crash. The signal before that one asks whether it holds the lock. Calls
// that the kernel does not restart, such as nanosleep and poll, end early. One object in a process.
class InterpreterWatch {
 public:
  // `output` gets the text. `folder` has the user's code, without a slash at its end.
  InterpreterWatch(double limit_s, int output, int signal, std::string folder);
  InterpreterWatch(const InterpreterWatch&) = delete;
  ~InterpreterWatch();

  int channel() const { return channel_[1]; }
  void start();
  // Python code runs. Call it about every second.
  void alive(std::vector<PythonThread> threads);

 private:
  void run();
  std::vector<Stack> stacks(const std::vector<PythonThread>& threads);
  std::string from(pid_t thread, int signal, int wait_ms, size_t most);

  const double limit_s_;
  const int output_;
  const int signal_;
  const int question_;
  const std::string folder_;
  int channel_[2] = {-1, -1};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<PythonThread> threads_;
  double silent_s_ = 0.0;
  int written_ = 0;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace elasticdl::worker
