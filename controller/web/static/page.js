// What every page has: the live stream, dates, confirmation, messages, keys and the theme.
import { follow } from "./live.js";
import { showDates } from "./dates.js";
import { listenForKeys } from "./keys.js";

function say(text, kind = "") {
  const toast = document.createElement("p");
  toast.className = `toast ${kind}`;
  toast.textContent = text;
  document.getElementById("toasts").append(toast);
  setTimeout(() => toast.remove(), 8000);
}

function reason(request) {
  try {
    return JSON.parse(request.responseText).error.message;
  } catch {
    return request.status ? `the controller answered ${request.status}` : "the controller does not answer";
  }
}

const dialog = document.getElementById("confirm");
let asked = null; // the request whose question is open

function ask(event) {
  const { elt, verb, question } = event.detail;
  // A second click while the first is answered: htmx would send it too.
  const isAgain = verb === "post" && elt.classList.contains("htmx-request");
  if (question || isAgain) event.preventDefault();
  if (!question) return;
  asked = event.detail;
  document.getElementById("confirm-text").textContent = question;
  dialog.showModal();
}

// The answer is heard here: a browser tells of a closed dialog later, maybe after the next question.
function answered({ submitter }) {
  const { issueRequest } = asked;
  if (submitter.value === "yes") issueRequest(true);
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  document.dispatchEvent(new Event("fairlead:theme"));
  document.cookie = `fairlead-theme=${root.dataset.theme}; Path=/dashboard; Max-Age=31536000; SameSite=Strict`;
}

document.body.addEventListener("htmx:confirm", ask);
dialog.addEventListener("submit", answered);
document.body.addEventListener("fairlead:done", (event) => say(event.detail.message));
// A filter that is empty does not stand in the address.
document.body.addEventListener("htmx:configRequest", ({ detail }) => {
  if (detail.verb !== "get") return;
  for (const [name, value] of [...detail.formData]) if (value === "") detail.formData.delete(name);
});
document.body.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status === 401) location.reload();
  else if (event.detail.requestConfig.verb !== "get") say(reason(event.detail.xhr), "refused");
});
document.body.addEventListener("htmx:sendError", (event) => {
  if (event.detail.requestConfig.verb !== "get") say("the controller does not answer", "refused");
});
document.body.addEventListener("htmx:afterSwap", () => showDates(document));
document.getElementById("theme").addEventListener("click", switchTheme);
showDates(document);
setInterval(() => showDates(document), 15000);
listenForKeys();
follow();
