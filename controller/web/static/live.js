// The live stream. An element with data-live="TOPIC" gets the event `changed` when the topic changed;
// with hx-get and hx-trigger="changed" it asks for itself again, and only what differs is replaced.
// A hidden tab holds no connection.
const STALE = 25000; // milliseconds without a heartbeat: the machine slept, or the network went
let source = null;
let last = 0;
let retry = 500;
let timer = 0;

const page = document.querySelector('meta[name="fairlead-page"]').content;
const version = document.querySelector('meta[name="fairlead-version"]').content;

function topics() {
  return [...new Set([...document.querySelectorAll("[data-live]")].map((one) => one.dataset.live))];
}

const waiting = new Set(); // ids of elements that changed again while they could not be replaced
const question = document.getElementById("confirm");

// A button that asks, or whose request is under way, must stay on the page: its answer is lost with it.
function isActing() {
  return question.open || document.querySelector("[hx-post].htmx-request") !== null;
}

function refresh(one) {
  if (isActing() || one.classList.contains("htmx-request")) waiting.add(one.id);
  else one.dispatchEvent(new CustomEvent("changed", { bubbles: false }));
}

function tell(topic) {
  for (const one of document.querySelectorAll("[data-live]")) {
    if (topic === null || one.dataset.live === topic) refresh(one);
  }
}

function keepWhileActing(event) {
  if (!event.detail.elt.matches("[data-live]") || !isActing()) return;
  event.detail.shouldSwap = false;
  waiting.add(event.detail.elt.id);
}

// The answer replaced the element, and what htmx had queued for it with it.
function tellAgain() {
  if (isActing()) return;
  for (const id of [...waiting]) {
    const one = document.getElementById(id);
    if (one && one.classList.contains("htmx-request")) continue;
    waiting.delete(id);
    if (one) refresh(one);
  }
}

const typed = new WeakSet(); // fields that a reader has filled in and not sent

// What the reader has typed and unfolded stays when the part around it changes.
function belongsToReader(name, element) {
  return (name === "open" && element.localName === "details") || (name === "value" && typed.has(element));
}

function show(text) {
  const shown = document.getElementById("connection");
  if (shown.textContent !== text) shown.textContent = text;
  shown.dataset.state = text;
}

function close() {
  clearTimeout(timer);
  if (source) source.abort();
  source = null;
}

// The events of the stream: the name of each, and what it says.
async function* events(body) {
  let rest = "";
  for await (const part of chunks(body.pipeThrough(new TextDecoderStream()).getReader())) {
    const blocks = (rest + part).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const [, name, said] = block.match(/^event: (.*)\ndata: (.*)$/);
      yield [name, JSON.parse(said)];
    }
  }
}

async function* chunks(reader) {
  for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
}

async function later() {
  close();
  show("reconnecting");
  try {
    const answer = await fetch("/dashboard/session", { headers: { "X-Fairlead-Page": page } });
    if (answer.status === 401 || answer.status === 403) location.reload();
  } catch {
    // The controller is away.
  }
  clearTimeout(timer);
  timer = setTimeout(open, retry);
  retry = Math.min(retry * 2, 5000);
}

// An EventSource cannot send the document's token in a header, and no address may hold it.
async function open() {
  close();
  if (document.hidden) return;
  const query = new URLSearchParams();
  for (const topic of topics()) query.append("topic", topic);
  const opened = new AbortController();
  source = opened;
  last = Date.now();
  try {
    const headers = { "X-Fairlead-Page": page };
    const answer = await fetch(`/dashboard/stream?${query}`, { headers, signal: opened.signal });
    if (answer.ok) await listen(answer.body);
  } catch {
    // The controller is away, or this page closed the stream.
  }
  if (source === opened) later();
}

async function listen(body) {
  for await (const [name, said] of events(body)) {
    last = Date.now();
    if (name === "hello") {
      if (said !== version) location.reload();
      retry = 500;
      show("live");
      tell(null); // what changed before the stream was open
    } else if (name === "changed") tell(said);
  }
}

export function follow() {
  open();
  document.body.addEventListener("htmx:beforeSwap", keepWhileActing);
  document.body.addEventListener("htmx:afterSettle", tellAgain);
  document.body.addEventListener("htmx:afterRequest", ({ detail }) => {
    if (detail.requestConfig.verb !== "post") return;
    if (detail.successful) detail.elt.querySelectorAll("input").forEach((field) => typed.delete(field));
    tellAgain();
  });
  document.body.addEventListener("input", (event) => typed.add(event.target));
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) => !belongsToReader(name, element);
  question.addEventListener("close", tellAgain);
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("online", open);
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  setInterval(() => { if (source && Date.now() - last > STALE) open(); }, 5000);
  setInterval(() => { if (source) document.querySelectorAll("[data-aging]").forEach(refresh); }, 60000);
}
