// How both ends of a connection prove that they know the token of the client at this server, without sending it. The server
// derives it from the client's name and its own key:
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
#include "elasticdl/rpc/native/wire.h"

namespace elasticdl::wire {

enum class Side { server, client };

// What the worker `name` shows to the server with this key: `bulk_token` in elasticdl/tokens.py.
inline std::string bulk_token(std::string_view key, std::string_view name) {
  const Digest digest = hmac_sha256(key, "bulk " + std::string(name));
  std::string hex;
  for (unsigned char byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

// `hello` is the whole payload of the hello, the client's nonce with it.
inline Digest proof(Side side, std::string_view token, std::string_view hello, const Digest& nonce) {
  std::string message = "elasticdl bulk plane " + std::to_string(kVersion) + (side == Side::server ? ", server:" : ", client:");
  message.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  message.append(hello);
  return hmac_sha256(token, message);
}

}  // namespace elasticdl::wire
