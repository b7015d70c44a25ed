// The end of a session: its cookie opens nothing afterwards, in no window.
import { button } from "./controls.js";
import { byId } from "./dom.js";
import { tell } from "./stream.js";

export const signOutButton = () => button("sign-out", "Sign out", "quiet");

export function bindSignOut() {
  byId("sign-out").addEventListener("click", async () => {
    try {
      await fetch("/session", { method: "DELETE", signal: AbortSignal.timeout(15000) });
    } catch {
      return tell("broken", "not signed out: the master does not answer");
    }
    location.replace("/");
  });
}
