// The one live stream of a browser. HTTP/1.1 allows six connections for each host, so all pages of a
// browser share one: the hub lives in a SharedWorker, or in the page itself where there is none.

const STALE = 25000; // milliseconds without a heartbeat: the machine slept, or the network went
const GONE = 60000; // milliseconds without a word of a page: it crashed
const MAX_TOPICS = 64; // as the controller takes
const ANY = "any";

export class Hub {
  constructor() {
    this.pages = new Map(); // what each visible page follows, by its port; the latest page is the last
    this.stream = null; // the one that is live
    this.opening = null; // the one that shall take its place
    this.retry = 500;
    this.timer = 0;
    setInterval(() => this.check(), 5000);
  }

  join(port) {
    port.onmessage = ({ data }) => this.hear(port, data);
  }

  hear(port, said) {
    if (said.follow) this.follow(port, said);
    else if (said.leave) this.leave(port);
    else if (said.again) this.open();
    else if (this.pages.has(port)) this.pages.get(port).heard = Date.now();
  }

  // A page follows these topics; each is known to it up to a mark.
  follow(port, { follow, token }) {
    this.pages.delete(port);
    this.pages.set(port, { topics: follow, token, heard: Date.now(), refused: false });
    const topics = Object.keys(follow);
    if (!this.stream || !topics.every((topic) => this.stream.covers(topic))) return this.open();
    port.postMessage({ ...this.stream.hello, now: null, broken: this.stream.broken }); // its time has passed
    for (const topic of topics) {
      if (this.stream.changedAfter(topic, follow[topic])) this.tell(port, topic);
    }
  }

  leave(port) {
    this.pages.delete(port);
    if (!this.pages.size) this.close();
  }

  close() {
    clearTimeout(this.timer);
    for (const one of [this.stream, this.opening]) one?.abort();
    this.stream = this.opening = null;
  }

  // No event tells a worker that a page crashed, or that the machine slept: it looks.
  check() {
    for (const [port, page] of this.pages) if (Date.now() - page.heard > GONE) this.leave(port);
    const one = this.opening ?? this.stream;
    if (one && Date.now() - one.heard > STALE) this.open();
  }

  // The topics of all pages, each with the mark from which on changes of it must be told.
  wanted() {
    const wanted = new Map();
    for (const { topics } of this.pages.values()) {
      for (const [topic, mark] of Object.entries(topics)) {
        if (this.stream?.covers(topic)) wanted.set(topic, this.stream.mark);
        else if (!wanted.has(topic) || isBefore(mark, wanted.get(topic))) wanted.set(topic, mark);
      }
    }
    return wanted;
  }

  // Open a stream for what is wanted now. The one before goes on until this one is live.
  async open() {
    clearTimeout(this.timer);
    this.opening?.abort();
    this.opening = null;
    const page = [...this.pages.values()].findLast((one) => !one.refused);
    if (!page) return;
    const stream = new Stream(this.wanted(), page.token);
    this.opening = stream;
    const status = await stream.read((name, said) => this.came(stream, name, said));
    // Another stream took its place while this one was read.
    if (stream !== this.stream && stream !== this.opening) return;
    if (stream === this.opening) this.opening = null;
    if (stream === this.stream) this.lost(stream);
    if (status === 401 || status === 403) this.refuse(page.token);
    if (!this.stream) this.say({ state: "reconnecting" });
    this.timer = setTimeout(() => this.open(), this.retry);
    this.retry = Math.min(this.retry * 2, 5000);
  }

  // What the pages know goes on from the last mark that was told.
  lost(stream) {
    this.stream = null;
    for (const { topics } of this.pages.values()) {
      for (const topic of Object.keys(topics)) if (stream.covers(topic)) topics[topic] = stream.mark;
    }
  }

  // The login of these pages may have ended, which each of them asks for itself.
  refuse(token) {
    for (const [port, page] of this.pages) {
      if (page.token !== token) continue;
      page.refused = true;
      port.postMessage({ state: "refused" });
    }
  }

  came(stream, name, said) {
    if (name === "hello") {
      this.stream?.abort();
      this.stream = stream;
      this.opening = null;
      this.retry = 500;
    }
    if (stream !== this.stream) return;
    if (name === "changed") {
      for (const port of this.pages.keys()) this.tell(port, said.topic);
    } else if (name === "hello") this.say({ ...stream.hello, broken: stream.broken });
    else this.beat({ ...said, state: "live" });
  }

  // A page whose stream is on its way knows nothing of its topics up to this one's mark.
  beat({ mark, ...said }) {
    for (const [port, { topics }] of this.pages) {
      const isTold = Object.keys(topics).every((topic) => this.stream.covers(topic));
      port.postMessage(isTold && mark ? { mark, ...said } : said);
    }
  }

  say(message) {
    for (const port of this.pages.keys()) port.postMessage(message);
  }

  // Pages beyond what one stream may follow hear of every change.
  tell(port, topic) {
    const own = Object.keys(this.pages.get(port).topics);
    const told = own.filter((one) => one === topic || (topic === ANY && !this.stream.topics.has(one)));
    for (const one of told) port.postMessage({ changed: one, mark: this.stream.mark });
  }
}

class Stream {
  constructor(wanted, token) {
    this.since = wanted;
    this.topics = new Set(wanted.keys());
    this.isCut = wanted.size > MAX_TOPICS;
    if (this.isCut) this.topics = new Set([ANY, ...wanted.keys()].slice(0, MAX_TOPICS));
    this.token = token;
    this.changed = new Map(); // the mark of the latest change of each topic
    this.mark = "";
    this.heard = Date.now();
    this.hello = null;
    this.controller = new AbortController();
  }

  abort() {
    this.controller.abort();
  }

  covers(topic) {
    return this.topics.has(topic) || this.isCut;
  }

  changedAfter(topic, mark) {
    const known = this.topics.has(topic) ? topic : ANY;
    return isBefore(mark, this.since.get(known) ?? "") || isBefore(mark, this.changed.get(known) ?? mark);
  }

  // Give each event to `act`, until the stream ends. The status of an answer that is none.
  async read(act) {
    const query = new URLSearchParams();
    for (const topic of this.topics) query.append("topic", `${topic}:${this.since.get(topic) ?? ""}`);
    try {
      // An EventSource cannot send the document's token in a header, and no address may hold it.
      const headers = { "X-Fairlead-Page": this.token };
      const answer = await fetch(`/dashboard/stream?${query}`, { headers, signal: this.controller.signal });
      if (!answer.ok) return answer.status;
      for await (const [name, said] of events(answer.body)) {
        this.heard = Date.now();
        if (said.mark) this.mark = said.mark;
        if (name === "changed") this.changed.set(said.topic, said.mark);
        if (said.broken) this.broken = said.broken;
        if (name === "hello") this.hello = { state: "live", version: said.version, now: said.now };
        act(name, said);
      }
    } catch {
      // The controller is away, or the hub closed the stream.
    }
    return null;
  }
}

// Marks are STARTED-NUMBER. Those of another start of the controller are older than all others.
function isBefore(one, other) {
  const [start, number] = one.split("-");
  const [otherStart, otherNumber] = other.split("-");
  return start !== otherStart || Number(number) < Number(otherNumber);
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

// As the script of the worker that all pages of one user share. It imports nothing: each further file
// of a worker is asked for by way of the browser's process, while the page waits to be live.
if (globalThis.SharedWorkerGlobalScope) {
  const hub = new Hub();
  addEventListener("connect", ({ ports: [port] }) => hub.join(port));
}
