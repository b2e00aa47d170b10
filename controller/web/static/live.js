// What is live on a page. An element with data-live="TOPIC" gets the event `changed` when the topic
// changed; with hx-get and hx-trigger="changed" it asks for itself again, and only what differs is
// replaced. A hidden tab follows nothing.
import { lasting } from "./dates.js";
import { setClock } from "./clock.js";
import { first, hub } from "./worker.js";

const SILENT = 35000; // milliseconds without a word of the hub: it is gone
const OLD = 5000; // milliseconds after which the page says how old its data are
const said = (name) => document.querySelector(`meta[name="fairlead-${name}"]`).content;
const page = said("page");
const version = said("version");
const marks = new Map(); // up to which change each topic is known
let port = null;
let heard = Date.now();
let fresh = Date.now(); // what is shown was right at this time
let state = "connecting";

function topics() {
  const every = [...document.querySelectorAll("[data-live]")].map((one) => one.dataset.live);
  return Object.fromEntries(every.map((topic) => [topic, marks.get(topic) ?? said("mark")]));
}

const waiting = new Set(); // ids of elements that changed again while they could not be replaced
const behind = new Set(); // ids of elements whose latest change could not be fetched
const question = document.getElementById("confirm");

// A button that asks, or whose request is under way, must stay on the page: its answer is lost with it.
function isActing() {
  return question.open || document.querySelector("[hx-post].htmx-request") !== null;
}

const rests = new WeakMap(); // until when an element is not asked for again: a big one costs more

function refresh(one) {
  const rest = (rests.get(one) ?? 0) - Date.now();
  if (rest > 0) setTimeout(tellAgain, rest);
  if (rest > 0 || isActing() || one.classList.contains("htmx-request")) waiting.add(one.id);
  else one.dispatchEvent(new CustomEvent("changed", { bubbles: false }));
}

function tell(topic) {
  for (const one of document.querySelectorAll("[data-live]")) {
    if (one.dataset.live === topic) refresh(one);
  }
}

const choosing = new Set(); // requests by which the reader chose what else a list shows, not answered yet
let choices = 0;
let postponed = null; // the link or form of a choice that was answered while something asked

function asking({ detail: { elt, xhr, requestConfig } }) {
  if (elt.matches("[data-live]")) {
    elt.askedAt = Date.now();
    elt.choices = choosing.size ? -1 : choices;
  } else if (requestConfig.verb === "get") {
    choosing.add(xhr);
    choices += 1;
  }
}

function keep(event) {
  const { elt, verb } = event.detail.requestConfig;
  const isLive = elt.matches("[data-live]");
  // What was asked for before the reader's choice would take the list back to what it showed then.
  const isOld = isLive && elt.choices !== choices;
  if (verb !== "get" || (!isOld && !isActing())) return;
  event.detail.shouldSwap = false;
  if (isLive) waiting.add(elt.id);
  else postponed = elt;
}

// The answer replaced the element, and what htmx had queued for it with it.
function tellAgain() {
  if (isActing()) return;
  const choice = postponed;
  postponed = null;
  if (choice?.isConnected) htmx.trigger(choice, choice.localName === "form" ? "submit" : "click");
  for (const id of [...waiting]) {
    const one = document.getElementById(id);
    if (one && one.classList.contains("htmx-request")) continue;
    waiting.delete(id);
    if (one) refresh(one);
  }
}

function answered({ detail: { elt, xhr, successful, requestConfig } }) {
  choosing.delete(xhr);
  if (requestConfig.verb === "post") {
    if (successful) elt.querySelectorAll("input").forEach((field) => isSent(field, requestConfig) && typed.delete(field));
    tellAgain();
  } else if (elt.matches("[data-live]")) {
    if (successful) behind.delete(elt.id);
    else behind.add(elt.id);
    rests.set(elt, Date.now() + Math.min(3 * (Date.now() - elt.askedAt), 5000));
    show();
    tellAgain();
  }
}

const typed = new WeakSet(); // fields that a reader has filled in and not sent

// The reader may have typed on while what was sent was answered.
function isSent(field, { parameters }) {
  return parameters[field.name] === field.value;
}

// What the reader has typed and unfolded stays when the part around it changes.
function belongsToReader(name, element) {
  return (name === "open" && element.localName === "details") || (name === "value" && typed.has(element));
}

// Whether the page is live, and how old its data are if not.
function show() {
  const shown = document.getElementById("connection");
  const isLive = state === "live" && !behind.size;
  if (isLive) fresh = Date.now();
  const age = Date.now() - fresh;
  const old = isLive || age < OLD ? "" : `, the data are ${lasting(age / 1000)} old`;
  const text = (isLive ? "live" : state === "live" ? "not refreshed" : state) + old;
  if (shown.textContent !== text) shown.textContent = text;
  shown.dataset.state = isLive ? "live" : old ? "old" : state;
}

function hear({ data }) {
  heard = Date.now();
  // A new controller: these scripts would ask it for what it may no longer have.
  if (data.version && data.version !== version) return location.reload();
  if (data.now) setClock(data.now);
  if (data.broken) showBroken(data.broken);
  if (data.state) state = data.state === "refused" ? "reconnecting" : data.state;
  if (data.state === "refused") askForLogin();
  if (data.mark) for (const topic of data.changed ? [data.changed] : marks.keys()) marks.set(topic, data.mark);
  if (data.changed) tell(data.changed);
  if (data.state === "live") for (const id of behind) if (document.getElementById(id)) refresh(document.getElementById(id));
  show();
}

// Count in the navigation what needs a person.
function showBroken(counts) {
  for (const shown of document.querySelectorAll("[data-broken]")) {
    const count = counts[shown.dataset.broken] ?? 0;
    shown.hidden = !count;
    shown.firstElementChild.textContent = count;
  }
}

async function askForLogin() {
  try {
    const answer = await fetch("/dashboard/session", { headers: { "X-Fairlead-Page": page } });
    if (answer.status === 401 || answer.status === 403) location.reload();
    else setTimeout(open, 5000);
  } catch {
    setTimeout(open, 5000); // the controller is away
  }
}

async function connect(opened) {
  port?.postMessage({ leave: true });
  port = await opened;
  port.onmessage = hear;
  open();
}

function open() {
  if (document.hidden || !port) return;
  const follow = topics();
  for (const topic of Object.keys(follow)) marks.set(topic, follow[topic]);
  port.postMessage({ follow, token: page });
  show();
}

function close() {
  state = "connecting";
  port?.postMessage({ leave: true });
}

function check() {
  show();
  if (document.hidden || !port) return;
  port.postMessage({ here: true });
  if (Date.now() - heard < SILENT) return;
  heard = Date.now();
  state = "reconnecting";
  connect(hub());
}

export function follow() {
  connect(first);
  document.body.addEventListener("htmx:beforeSwap", keep);
  document.body.addEventListener("htmx:afterSettle", tellAgain);
  document.body.addEventListener("htmx:beforeRequest", asking);
  document.body.addEventListener("htmx:afterRequest", answered);
  document.body.addEventListener("input", (event) => typed.add(event.target));
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) => !belongsToReader(name, element);
  question.addEventListener("close", tellAgain);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return close();
    open();
    age();
  });
  addEventListener("online", () => port?.postMessage({ again: true }));
  // A page in the back/forward cache runs no code, and comes back without being loaded.
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  setInterval(check, 5000);
  setInterval(() => { if (state === "live") age(); }, 60000);
}

// What the controller writes grows old without a change: how long a run runs, what it still waits for.
function age() {
  document.querySelectorAll("[data-aging]").forEach(refresh);
}
