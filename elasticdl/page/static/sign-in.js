// The token comes in the address's fragment, which no server and no log ever sees; it is traded for a cookie at once.
const form = document.getElementById("sign-in"), problem = document.getElementById("problem");

async function signIn(token) {
  history.replaceState(null, "", location.pathname + location.search);
  let response;
  try {
    response = await fetch("/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
  } catch {
    problem.textContent = "The master does not answer.";
    return;
  }
  if (response.ok) return location.reload();
  const said = await response.json().catch(() => ({}));
  problem.textContent = [said.error?.message ?? `The master said ${response.status}`, said.error?.hint].filter(Boolean).join(": ");
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(document.getElementById("token").value.trim());
});
// Also of the address that somebody puts in while this page is open: then the fragment is all that changes.
function take() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) signIn(given);
}

addEventListener("hashchange", take);
take();
