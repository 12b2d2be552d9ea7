"use strict";
// What pages cannot do by themselves: jobs that move, uploads. No library, nothing from elsewhere.

// ---- jobs: the server sends rows ready made, and only the cells that differ are replaced
const live = document.querySelector("[data-live]");
function patch(html) {
  const box = document.createElement("template");
  box.innerHTML = html;
  const made = box.content.firstElementChild, there = document.getElementById(made.id);
  if (!there) {
    live.prepend(made);
    document.querySelectorAll(".none").forEach((one) => one.remove());
    return;
  }
  for (const part of made.querySelectorAll("[data-part]")) {
    const old = there.querySelector('[data-part="' + part.dataset.part + '"]');
    if (old.innerHTML === part.innerHTML) continue;
    const held = old.contains(document.activeElement);
    old.replaceChildren(...part.childNodes);
    // who was at a button stays where it was
    if (held) (old.querySelector("a, button:enabled") || there.querySelector("a") || document.querySelector("main a")).focus();
  }
}
if (live) {
  const source = new EventSource(live.dataset.live);
  source.addEventListener("job", (event) => patch(event.data));
  source.addEventListener("end", () => source.close());
  addEventListener("pagehide", () => source.close());
}

// ---- uploads: files go as they are, so that not a digit of them changes on the way
const PARTS = ["profile", "hardware", "model", "costs", "routing"];
function base64(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => failed(new Error(file.name + " cannot be read."));
    reader.readAsDataURL(file);
  });
}
async function profileBody(form) {
  const files = new Map();
  for (const input of form.querySelectorAll("input[type=file]")) for (const file of input.files) files.set(file.name, file);
  const missing = [...PARTS.map((part) => part + ".json"), "routing.npz"].filter((name) => !files.has(name));
  if (missing.length) throw new Error((files.size ? "Missing: " : "Choose the folder or its files first: ") + missing.join(", ") + ".");
  const pieces = [];
  for (const part of PARTS) pieces.push((pieces.length ? ',"' : '{"') + part + '":', files.get(part + ".json"));
  return new Blob([...pieces, ',"arrays_base64":"' + await base64(files.get("routing.npz")) + '"}']);
}
const UPLOADS = {
  profile: { to: "/v1/profiles", body: profileBody },
  trace: { to: "/v1/traces", body: async (form) => form.querySelector("input[type=file]").files[0] },
};
for (const form of document.querySelectorAll("form[data-upload]")) {
  const said = form.querySelector(".said"), button = form.querySelector("button");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const kind = UPLOADS[form.dataset.upload];
    said.classList.remove("wrong");
    said.textContent = "Is being uploaded…";
    button.disabled = true;
    try {
      const body = await kind.body(form);
      const answer = await fetch(kind.to, { method: "POST", headers: { "Content-Type": "application/json" }, body });
      const told = await answer.json();
      if (!answer.ok) throw new Error(answer.status === 401 ? "Log in again: the token is no longer valid." : "Refused: " + told.detail + ".");
      location.href = form.dataset.after + told.hash;
    } catch (error) {
      said.classList.add("wrong");
      said.textContent = error.message;
      button.disabled = false;
    }
  });
}

// ---- a list of faults is where reading goes on
const focus = document.querySelector("[data-focus]");
if (focus) focus.focus();
