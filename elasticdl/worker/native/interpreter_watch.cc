#include <Python.h>

#include "interpreter_watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <system_error>

namespace elasticdl::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLookS = 0.5;
// Of the time between two looks no more counts: the process was stopped, or starved itself.
constexpr double kMostS = 1.0;
constexpr int kMostWritten = 3;
constexpr double kWriteLimitS = 3.0;
constexpr int kAnswerMs = 200;
constexpr int kQuietMs = 20;
constexpr size_t kMostFrames = 12;
constexpr size_t kMostBytes = 12000;

// What a thread answers: it knows no Python, it does, or it holds the interpreter's lock.
constexpr char kNoPython = 'n', kPython = 'p', kHolds = 'h';

std::atomic<int> answers{-1};

void answer(int) {
  const int before = errno;
  const char said = PyGILState_GetThisThreadState() == nullptr ? kNoPython : PyGILState_Check() ? kHolds : kPython;
  const ssize_t wrote = write(answers, &said, 1);
  static_cast<void>(wrote);
  errno = before;
}

// `  File "/zoo/m.py", line 7 in feed` of a file below `folder` as `/zoo/m.py:7, in feed`; else "".
std::string user_frame(const std::string& line, const std::string& folder) {
  const std::string begin = "  File \"" + folder + "/";
  if (folder.empty() || line.compare(0, begin.size(), begin) != 0) return "";
  const size_t file = std::strlen("  File \""), end = line.find("\", line ", file);
  if (end == std::string::npos) return "";
  const size_t number = end + std::strlen("\", line "), in = line.find(" in ", number);
  if (in == std::string::npos) return "";
  return line.substr(file, end - file) + ":" + line.substr(number, in - number) + ", in " + line.substr(in + 4);
}

Stack parsed(std::string name, bool holds, const std::string& text, const std::string& folder) {
  Stack stack{std::move(name), holds, {}, {}};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, 7, "  File ") != 0) continue;
    if (stack.frames.size() < kMostFrames) stack.frames.push_back(line);
    std::string frame = user_frame(line, folder);
    if (!frame.empty() && stack.user_frames.size() < kMostFrames) stack.user_frames.push_back(std::move(frame));
  }
  return stack;
}

std::vector<pid_t> all_threads() {
  std::vector<pid_t> found;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return found;
  while (const dirent* entry = readdir(tasks)) {
    const pid_t id = static_cast<pid_t>(std::atoi(entry->d_name));
    if (id > 0) found.push_back(id);
  }
  closedir(tasks);
  return found;
}

// The holder of the lock comes last: the end of a log is what people and the master read first.
std::string text_of(std::vector<Stack> stacks, int silent_s) {
  std::stable_sort(stacks.begin(), stacks.end(), [](const Stack& a, const Stack& b) { return a.holds < b.holds; });
  std::string body;
  for (const Stack& stack : stacks) {
    body += "thread " + stack.name + ", innermost frame first:\n";
    for (const std::string& frame : stack.frames) body += frame + "\n";
  }
  if (body.size() > kMostBytes) {
    body.erase(0, body.size() - kMostBytes);
    body.erase(0, body.find('\n') + 1);
  }
  const std::string since = " for " + std::to_string(silent_s) + " s";
  if (stacks.empty() || !stacks.back().holds) return body + "Python code has hardly run" + since + ": the process gets no CPU time\n";
  const Stack& holder = stacks.back();
  std::string end = "thread " + holder.name + " has held the interpreter's lock" + since;
  if (holder.user_frames.empty()) return body + end + "\n";
  end += ", in the user's code at:\n";
  for (auto frame = holder.user_frames.rbegin(); frame != holder.user_frames.rend(); ++frame) end += "  at " + *frame + "\n";
  return body + end;
}

void write_all(int output, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(output, text.data() + done, text.size() - done);
    if (wrote < 0 && errno != EINTR) return;  // A full disk, or nobody reads.
    if (wrote > 0) done += static_cast<size_t>(wrote);
  }
}

}  // namespace

InterpreterWatch::InterpreterWatch(double limit_s, int output, int signal, std::string folder)
    : limit_s_(limit_s), output_(output), signal_(signal), question_(signal - 1), folder_(std::move(folder)) {
  if (pipe2(channel_, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  // A thread that writes more than the pipe takes must not wait in the signal's handler.
  if (fcntl(channel_[1], F_SETFL, O_NONBLOCK) != 0) throw std::system_error(errno, std::generic_category(), "fcntl");
  answers = channel_[1];
  struct sigaction action = {};
  action.sa_handler = answer;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  if (sigaction(question_, &action, nullptr) != 0) throw std::system_error(errno, std::generic_category(), "sigaction");
}

InterpreterWatch::~InterpreterWatch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  close(channel_[0]);
  close(channel_[1]);
}

void InterpreterWatch::start() {
  if (thread_.joinable()) return;
  // Python's threads handle signals, this one must not.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void InterpreterWatch::alive(std::vector<PythonThread> threads) {
  std::lock_guard<std::mutex> lock(mutex_);
  threads_ = std::move(threads);
  silent_s_ = 0.0;
}

void InterpreterWatch::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  bool silent = false;
  for (auto before = Clock::now(); !stopped_;) {
    changed_.wait_for(lock, std::chrono::duration<double>(kLookS));
    const auto now = Clock::now();
    silent_s_ += std::min(kMostS, std::chrono::duration<double>(now - before).count());
    before = now;
    if (silent_s_ < limit_s_) {
      silent = false;
    } else if (!silent && !stopped_ && written_ < kMostWritten) {
      silent = true;
      ++written_;
      const std::vector<PythonThread> threads = threads_;
      const int silent_s = static_cast<int>(silent_s_);
      lock.unlock();
      const std::string text = text_of(stacks(threads), silent_s);
      lock.lock();
      // Python code that ran meanwhile is not blocked.
      if (silent_s_ >= limit_s_) write_all(output_, text);
      before = Clock::now();
    }
  }
}

std::vector<Stack> InterpreterWatch::stacks(const std::vector<PythonThread>& threads) {
  const auto end = Clock::now() + std::chrono::duration<double>(kWriteLimitS);
  const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
  std::vector<Stack> found;
  // Python does not know all: TensorFlow calls the user's functions in threads of its own. A signal
  // may interrupt their system calls, so they are asked only if none of Python's has the lock.
  const auto is_known = [&](pid_t id) { return std::any_of(threads.begin(), threads.end(), [id](const PythonThread& one) { return one.id == id; }); };
  std::vector<pid_t> all = all_threads();
  const auto others = std::stable_partition(all.begin(), all.end(), is_known);
  for (auto at = all.begin(); at != all.end(); ++at) {
    const pid_t id = *at;
    if (id == self) continue;
    if (at >= others && std::any_of(found.begin(), found.end(), [](const Stack& one) { return one.holds; })) break;
    if (Clock::now() > end) break;
    const std::string said = from(id, question_, kAnswerMs, 1);
    if (said.empty() || said[0] == kNoPython) continue;
    const auto known = std::find_if(threads.begin(), threads.end(), [id](const PythonThread& one) { return one.id == id; });
    const std::string name = known != threads.end() ? known->name : std::to_string(id);
    found.push_back(parsed(name, said[0] == kHolds, from(id, signal_, kAnswerMs, kMostBytes), folder_));
  }
  return found;
}

// What a thread writes when it gets a signal: at most `most` bytes, the first of them within `wait_ms`.
std::string InterpreterWatch::from(pid_t thread, int signal, int wait_ms, size_t most) {
  std::string text;
  pollfd readable{channel_[0], POLLIN, 0};
  char late[4096];  // Of a thread that was asked before.
  while (poll(&readable, 1, 0) > 0 && read(channel_[0], late, sizeof late) > 0) continue;
  if (syscall(SYS_tgkill, getpid(), thread, signal) != 0) return text;
  for (int left_ms = wait_ms; text.size() < most && poll(&readable, 1, left_ms) > 0; left_ms = kQuietMs) {
    char bytes[4096];
    const ssize_t got = read(channel_[0], bytes, sizeof bytes);
    if (got <= 0) break;
    text.append(bytes, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace elasticdl::worker
