// The token is in the address's fragment, which browsers never send, so no log contains it. The
// page exchanges it for a cookie at once.
const form = document.getElementById("sign-in"),
  problem = document.getElementById("problem");

async function signIn(token) {
  history.replaceState(null, "", location.pathname + location.search);
  let response;
  try {
    response = await fetch("/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    });
  } catch {
    problem.textContent = "The master does not answer.";
    return;
  }
  if (response.ok) return location.reload();
  const said = await response.json().catch(() => ({}));
  problem.textContent = [
    said.error?.message ?? `The master said ${response.status}`,
    said.error?.hint,
  ]
    .filter(Boolean)
    .join(": ");
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(document.getElementById("token").value.trim());
});
// Handles an address entered while this page is open: only the fragment changes, so the browser
// does not reload.
function take() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) signIn(given);
}

addEventListener("hashchange", take);
take();
