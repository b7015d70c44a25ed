// Commands to the job: a confirmation dialog, one request, then the master's answer.
import { button } from "./controls.js";
import { byId, commandOf, h, setText } from "./dom.js";
import { job } from "./job.js";

const bodies = {
  stop: (fields) => ({ reason: fields.get("reason") }),
  scale: (fields) => ({ min: Number(fields.get("min")), max: Number(fields.get("max")) }),
  checkpoint: () => ({}),
  replace: (fields) => ({ process: fields.get("process") }),
};

export function actionBar() {
  return h(
    "div",
    { class: "actions", id: "actions" },
    button("ask-scale", "Scale…"),
    button("ask-checkpoint", "Checkpoint…"),
    button("ask-stop", "Stop…"),
  );
}

export function dialogs() {
  const input = (word, attributes) =>
    h("label", {}, h("span", {}, word), " ", h("input", attributes));
  const number = (word, name) =>
    input(word, { name, type: "number", min: 1, max: 100000, required: true });
  const resume = h(
    "div",
    {},
    h("p", { id: "resume-command-lead" }),
    h("pre", { class: "command", id: "resume-command" }),
  );
  const reason = input("Reason", {
    name: "reason",
    maxlength: 200,
    placeholder: "asked for on the status page",
  });
  return [
    dialog(
      "stop",
      "Stop this job?",
      "Workers give their work back, and the job ends.",
      "Stop the job",
      resume,
      reason,
    ),
    dialog(
      "scale",
      "How many workers?",
      "The job keeps between these two numbers, as room allows.",
      "Scale",
      h("div", { class: "pair" }, number("at least", "min"), number("at most", "max")),
    ),
    dialog(
      "checkpoint",
      "Take a checkpoint now?",
      "All servers hold one consistent view for a moment; training continues.",
      "Take a checkpoint",
    ),
    dialog(
      "replace",
      "Replace this worker?",
      "It ends, other workers get its work, and another worker starts.",
      "Replace",
      h("input", { type: "hidden", name: "process" }),
    ),
    h("div", { id: "said", class: "said", role: "status" }),
  ];
}

function dialog(verb, title, text, word, ...fields) {
  const answer = h(
    "button",
    { type: "submit", class: verb === "stop" ? "danger" : "primary" },
    word,
  );
  return h(
    "dialog",
    { id: `dialog-${verb}`, "aria-labelledby": `${verb}-title` },
    h(
      "form",
      {},
      h("h2", { id: `${verb}-title` }, title),
      h("p", {}, text),
      ...fields,
      h("p", { class: "problem", role: "alert" }),
      h(
        "div",
        { class: "answers" },
        h("button", { type: "button", class: "cancel" }, "Cancel"),
        answer,
      ),
    ),
  );
}

export function bindActions(ask) {
  for (const verb of Object.keys(bodies)) {
    const dialog = byId(`dialog-${verb}`),
      form = dialog.querySelector("form");
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

// During the preflight there is no checkpoint to resume from: the job's outcome names the command
// that submits the job again.
function sayWayOn() {
  const told = job.about.resume_command ?? "",
    at = told.lastIndexOf("with: ") + 6,
    kept = told.startsWith("resume") ? "A last checkpoint is taken: " : "";
  const hidden = at < 6 || job.status.phase === "starting";
  byId("resume-command").parentElement.hidden = hidden;
  if (hidden) return;
  setText(byId("resume-command-lead"), kept + told.slice(0, at).trim());
  byId("resume-command").replaceChildren(...commandOf(told.slice(at)));
}

async function send(ask, verb, dialog, fields) {
  const body = bodies[verb](fields),
    button = dialog.querySelector("[type=submit]"),
    problem = dialog.querySelector(".problem");
  if (verb === "scale" && body.min > body.max)
    return setText(problem, "The smaller number goes first.");
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
