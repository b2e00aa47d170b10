// A shell in a running job. It ends when it is closed, and with the page.

import { ask, openSocket } from "./asking.js";
import { offer, whenJobsChange } from "./run.js";

// xterm writes its styles into <style> elements, which the page's policy forbids. A stand-in takes
// the text and gives it to a stylesheet of the document, which is allowed.
const create = document.createElement.bind(document);
document.createElement = (name, ...rest) => (name === "style" ? styles() : create(name, ...rest));

// It sets colours beyond the named ones, and those of a selection, as style attributes, which are
// forbidden too; the same through the object model is allowed.
const setAttribute = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else setAttribute.call(this, name, value);
};

function styles() {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const standIn = create("template");
  let text = "";
  Object.defineProperty(standIn, "textContent", {
    get: () => text,
    set: (given) => {
      text = given;
      sheet.replaceSync(given);
    },
  });
  standIn.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    Element.prototype.remove.call(standIn);
  };
  return standIn;
}

class Shell {
  constructor(root) {
    this.root = root;
    this.part = (name) => root.querySelector(`[data-terminal-part="${name}"]`);
    this.part("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.open(new FormData(event.target));
    });
    this.part("close").addEventListener("click", () => this.close());
    addEventListener("pagehide", () => this.close());
    whenJobsChange((jobs) => this.offerJobs(jobs));
  }

  offerJobs(jobs) {
    const without = this.root.dataset.without.split(" ");
    const options = jobs.map((job) => {
      const option = new Option(job.label, job.id);
      option.disabled = without.includes(job.group);
      return option;
    });
    offer(this.part("job"), options);
  }

  say(text) {
    this.part("status").textContent = text;
  }

  async open(form) {
    this.close();
    const opening = {}; // a later one, or the reader who closes it, takes its place
    this.opening = opening;
    const [{ Terminal }, { FitAddon }] = await Promise.all([
      import("./vendor/xterm.mjs"), // large, so it is loaded when it is wanted
      import("./vendor/addon-fit.mjs"),
    ]);
    if (this.opening !== opening) return;
    this.part("screen").hidden = false;
    const terminal = new Terminal({ convertEol: false, fontSize: 13, screenReaderMode: true });
    const fit = new FitAddon();
    terminal.loadAddon(fit);
    terminal.open(this.part("screen"));
    fit.fit();
    const query = { job: form.get("job"), login: form.get("login"), columns: terminal.cols, rows: terminal.rows };
    const socket = openSocket(`runs/${this.root.dataset.run}/terminal`, query);
    this.terminal = terminal;
    this.socket = socket;
    this.said = "";
    this.say("Connecting …");
    const bytes = new TextEncoder();
    const send = (data) => socket.readyState === WebSocket.OPEN && socket.send(data);
    terminal.onData((text) => send(bytes.encode(text)));
    // xterm gives some mouse reports as bytes in a string, which UTF-8 would change.
    terminal.onBinary((text) => send(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
    const resize = ({ cols, rows }) => send(JSON.stringify({ columns: cols, rows }));
    terminal.onResize(resize);
    terminal.attachCustomKeyEventHandler((event) => this.copied(event));
    // The window has no event for a change in which only this element gets another size.
    this.watch = new ResizeObserver(() => fit.fit());
    this.watch.observe(this.part("screen"));
    // A socket that was closed tells of it when the next one may be open.
    const isShown = () => this.socket === socket;
    socket.onopen = () => {
      if (!isShown()) return;
      this.say("Connected. Ctrl+Shift+C copies what is selected; Ctrl+Shift+Escape leaves the terminal.");
      this.part("close").hidden = false;
      // It may have got another size while it connected, and the reader may be at work elsewhere.
      if (terminal.cols !== query.columns || terminal.rows !== query.rows) resize(terminal);
      if (document.activeElement === document.body || this.root.contains(document.activeElement)) terminal.focus();
    };
    socket.onmessage = ({ data }) => {
      if (!isShown()) return;
      if (typeof data !== "string") return terminal.write(new Uint8Array(data));
      const told = JSON.parse(data);
      this.said = told.error ?? `The shell ended with status ${told.exit ?? "unknown"}.`;
    };
    socket.onclose = () => isShown() && this.ended(query.job, socket);
  }

  // Keys of the page itself. Tab and Escape are the shell's, so there is a way out of it by keys.
  copied(event) {
    if (event.type !== "keydown" || !event.ctrlKey || !event.shiftKey) return true;
    if (event.code === "KeyC" && this.terminal.hasSelection()) {
      event.preventDefault();
      copy(this.terminal.getSelection());
      return false;
    }
    if (event.code === "Escape") {
      this.part("close").focus();
      return false;
    }
    return true;
  }

  async ended(job, socket) {
    this.say(this.said || "The connection was closed.");
    this.part("close").hidden = true;
    this.watch?.disconnect();
    if (this.said) return;
    try {
      await ask(`runs/${this.root.dataset.run}/ssh`, { job }); // a browser hides why a socket is refused
    } catch (error) {
      if (this.socket === socket) this.say(`The connection was closed: ${error.message}.`);
    }
  }

  close() {
    const close = this.part("close");
    if (document.activeElement === close) this.part("open").focus();
    close.hidden = true;
    if (this.socket) this.say("The connection was closed.");
    this.socket?.close();
    this.watch?.disconnect();
    this.terminal?.dispose();
    this.opening = this.socket = this.terminal = this.watch = null;
    this.part("screen").hidden = true;
  }
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    document.execCommand("copy"); // the clipboard is for pages that came by HTTPS
  }
}

for (const root of document.querySelectorAll("[data-terminal]")) new Shell(root);
