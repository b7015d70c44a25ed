// How both ends of a connection prove that they know the job's token, without sending it:
//
//   client                              server
//   hello: nonce, name            ->
//                                 <-    challenge: nonce, proof
//   proof                         ->
//                                 <-    HelloReply
//
// A proof is an HMAC-SHA256 under the token of who proves, of all that the hello says, and of both nonces. So a proof is good
// for one connection, and neither end can send the other's back.
#pragma once

#include <string>
#include <string_view>

#include "elasticdl/rpc/native/sha256.h"

namespace elasticdl::wire {

enum class Side { server, client };

// `hello` is the whole payload of the hello, the client's nonce with it.
inline Digest proof(Side side, std::string_view token, std::string_view hello, const Digest& nonce) {
  std::string message = side == Side::server ? "elasticdl bulk plane 2, server:" : "elasticdl bulk plane 2, client:";
  message.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  message.append(hello);
  return hmac_sha256(token, message);
}

}  // namespace elasticdl::wire
