// What is asked of the job: a question first, then one request, then what the master said.
import { byId, commandOf, setText } from "./dom.js";
import { job } from "./job.js";

const bodies = {
  stop: (fields) => ({ reason: fields.get("reason") }),
  scale: (fields) => ({ min: Number(fields.get("min")), max: Number(fields.get("max")) }),
  checkpoint: () => ({}),
  replace: (fields) => ({ process: fields.get("process") }),
};

export function bindActions(ask) {
  for (const verb of Object.keys(bodies)) {
    const dialog = byId(`dialog-${verb}`), form = dialog.querySelector("form");
    byId(`ask-${verb}`)?.addEventListener("click", () => show(verb, dialog));
    dialog.querySelector(".cancel").addEventListener("click", () => dialog.close());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send(ask, verb, dialog, new FormData(form));
    });
  }
  document.addEventListener("click", (event) => {
    const process = event.target.dataset?.replace;
    if (!process) return;
    const dialog = byId("dialog-replace");
    dialog.querySelector("[name=process]").value = process;
    setText(byId("replace-title"), `Replace ${process}?`);
    show("replace", dialog);
  });
}

function show(verb, dialog) {
  setText(dialog.querySelector(".problem"), "");
  if (verb === "scale") {
    dialog.querySelector("[name=min]").value = job.status.scale?.low ?? 1;
    dialog.querySelector("[name=max]").value = job.status.scale?.high ?? 1;
  }
  if (verb === "stop") sayWayOn();
  dialog.showModal();
}

// While the preflight runs there is nothing to go on with: the job's end says how to submit it again.
function sayWayOn() {
  const told = job.about.resume_command ?? "", at = told.lastIndexOf("with: ") + 6, kept = told.startsWith("go on") ? "A last checkpoint is taken: " : "";
  const hidden = at < 6 || job.status.phase === "starting";
  byId("resume-command").parentElement.hidden = hidden;
  if (hidden) return;
  setText(byId("resume-command-lead"), kept + told.slice(0, at).trim());
  byId("resume-command").replaceChildren(...commandOf(told.slice(at)));
}

async function send(ask, verb, dialog, fields) {
  const body = bodies[verb](fields), button = dialog.querySelector("[type=submit]"), problem = dialog.querySelector(".problem");
  if (verb === "scale" && body.min > body.max) return setText(problem, "The smaller number goes first.");
  button.disabled = true;
  try {
    const answer = await ask(`/api/v1/${verb}`, body);
    dialog.close();
    say(answer.said);
  } catch (error) {
    setText(problem, error.message);
  } finally {
    button.disabled = false;
  }
}

export function say(text) {
  setText(byId("said"), text);
  setTimeout(() => byId("said").textContent === text && setText(byId("said"), ""), 6000);
}
