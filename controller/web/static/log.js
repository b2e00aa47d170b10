// The log viewer: windows of a log of any size. Only what is near the view is in the page; the
// rest is asked for when the reader comes near it, and let go when it is far again.

import { Ansi, element } from "./ansi.js";
import { ask, openSocket } from "./asking.js";
import { offer, setAddress, whenJobsChange } from "./run.js";

const WINDOW = { size: 16 * 1024, rows: 120 };
const MAX_ROWS = 600;
const NEAR = 1200; // pixels from an edge at which the next window is asked for
const MAX_MATCHES = 5000;
const DRAW_EVERY = 250; // milliseconds between two drawings of what a job prints
const ASK_EVERY = 8000; // milliseconds between two questions whether the controller is there
const SILENT = 15000; // milliseconds without its answer: its process hangs, or its machine went
const END = 1e9; // a place below the end of any view
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const WORDS = { stderr: "stderr", system: "Fairlead", marker: "missing" };

export class LogView {
  constructor(root) {
    this.root = root;
    this.part = (name) => root.querySelector(`[data-log-part="${name}"]`);
    this.view = this.part("view");
    this.chunks = [];
    this.logEnd = 0;
    this.queue = []; // frames that came and are not drawn yet
    this.drawing = null;
    this.drawnAt = 0;
    this.wanted = "";
    this.marks = null; // finds what is searched for in a row
    this.matches = [];
    this.match = -1;
    this.sought = null; // the offset that the reader went to last
    this.filling = null; // the generation that `fill` asks windows for
    this.generation = 0; // goes up with each part of a log that is asked for
    this.isPlacing = false; // whether the reader holds the slider
    this.isDrawn = false; // whether rows were drawn, and the view moved to its end, since it was looked at
    this.closed = new AbortController();
    this.listen();
    this.open();
  }

  // -- which log ----------------------------------------------------------------------------

  open() {
    const asked = new URLSearchParams(location.search);
    whenJobsChange((every) => {
      this.fillChoices(every);
      if (this.isOpen && !this.attempt) this.choose();
    });
    this.isOpen = true;
    const wanted = [...this.part("choice").options].find(
      (one) => one.value === asked.get("attempt") || one.dataset.job === asked.get("job"),
    );
    if (wanted) wanted.selected = true;
    this.choose({ search: asked.get("search") ?? "", isRegex: asked.has("regex"), match: asked.get("match") });
  }

  // One choice for each attempt of each job, a job's latest first.
  fillChoices(every) {
    const options = every.flatMap((job) =>
      job.attempts.map((attempt) => {
        const option = new Option(`${job.label}, attempt ${attempt.number} (${attempt.state})`, attempt.id);
        option.dataset.job = job.id;
        option.dataset.live = attempt.isLive ? "yes" : "";
        return option;
      }),
    );
    offer(this.part("choice"), options);
    this.offerNewer();
  }

  // A retry has a log of its own. The reader may still be at the end of the one before.
  offerNewer() {
    const shown = this.part("choice").selectedOptions[0];
    const newest = [...this.part("choice").options].find((one) => one.dataset.job === shown?.dataset.job);
    const button = this.part("newer");
    button.hidden = newest === shown || !this.attempt;
    button.value = newest?.value ?? "";
    button.textContent = `Show ${newest?.text ?? ""}`;
  }

  // `search` and `match` are those of the address, when the page opens.
  choose({ search = "", isRegex = false, match = null } = {}) {
    const chosen = this.part("choice").selectedOptions[0];
    this.offerNewer();
    this.unfollow();
    this.generation += 1;
    this.chunks = [];
    this.logEnd = 0;
    this.atLineStart = true;
    this.view.replaceChildren();
    this.part("search").value = search;
    this.part("regex").checked = isRegex;
    this.search("");
    if (!chosen) {
      this.say("The run has no attempt yet.");
      return;
    }
    this.attempt = chosen.value;
    const file = this.part("download");
    file.href = `/dashboard/runs/${this.root.dataset.run}/log.txt?attempt=${this.attempt}`;
    if (search) this.search(search, { from: Number(match ?? 0) });
    else if (chosen.dataset.live) this.follow();
    else this.showEnd();
  }

  // -- what the reader does -----------------------------------------------------------------

  listen() {
    document.addEventListener("click", (event) => this.clicked(event), { signal: this.closed.signal });
    const on = (name, event, act) =>
      this.part(name)?.addEventListener(event, act, { signal: this.closed.signal });
    this.view.addEventListener("scroll", () => this.scrolled(), { passive: true });
    on("follow", "change", (event) => (event.target.checked ? this.follow() : this.unfollow()));
    on("wrap", "change", (event) => this.view.classList.toggle("log-wrapped", event.target.checked));
    on("times", "change", (event) => this.view.classList.toggle("log-timed", event.target.checked));
    on("newer", "click", (event) => {
      this.part("choice").value = event.target.value;
      this.part("choice").dispatchEvent(new Event("change"));
    });
    on("choice", "change", () => {
      this.choose();
      setAddress({ attempt: this.attempt, job: "", search: "", regex: "", match: "" }, "#log");
    });
    on("start", "click", () => this.show({ offset: 0 }));
    on("end", "click", () => this.showEnd());
    on("place", "input", () => {
      this.isPlacing = true;
      this.unfollow(); // new rows would hide what the reader looks at
    });
    on("place", "change", (event) => {
      this.isPlacing = false;
      this.show({ near: event.target.value });
    });
    // A slider that is let go where it was taken tells of no change.
    for (const end of ["pointerup", "pointercancel", "blur"]) on("place", end, () => (this.isPlacing = false));
    on("time", "focus", (event) => (event.target.value ||= this.timeShown()));
    on("time", "change", (event) => this.showTime(event.target.value));
    on("next", "click", () => this.step(1));
    on("previous", "click", () => this.step(-1));
    on("search", "change", (event) => event.target.value !== this.wanted && this.search(event.target.value));
    on("regex", "change", () => this.search(this.part("search").value));
    on("search", "keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      if (event.target.value !== this.wanted) this.search(event.target.value);
      else this.step(event.shiftKey ? -1 : 1);
    });
  }

  // A link to a log that is offered here changes what is shown, and asks for no other page.
  clicked(event) {
    const link = event.target.closest?.("a[data-log-of]");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const wanted = [...this.part("choice").options].find((one) => one.value === link.dataset.logOf);
    if (!wanted) return;
    event.preventDefault();
    wanted.selected = true;
    this.part("choice").dispatchEvent(new Event("change"));
    this.root.scrollIntoView();
    this.view.focus({ preventScroll: true });
  }

  close() {
    this.closed.abort();
    this.generation += 1;
    this.unfollow();
  }

  say(text) {
    this.part("status").textContent = text;
  }

  // -- windows ------------------------------------------------------------------------------

  path(what) {
    return `runs/${this.root.dataset.run}/logs/${what}`;
  }

  async window(place) {
    const { generation } = this;
    const asked = await ask(this.path("window"), { attempt: this.attempt, ...place, ...WINDOW });
    // The answer may be of another attempt's log than the one that is shown by now.
    if (generation === this.generation) this.logEnd = Math.max(this.logEnd, asked.log_end);
    return asked;
  }

  // Show another part of the log; what was shown before goes. `look` scrolls to what is wanted. Whether
  // the reader has asked for no other part since.
  async show(place, { keepFollowing = false, look = () => (this.view.scrollTop = 0) } = {}) {
    if (!keepFollowing) this.unfollow();
    this.sought = place.near ?? null;
    const generation = ++this.generation;
    try {
      const found = await this.window(place);
      // The reader may have gone elsewhere while the answer came.
      if (generation !== this.generation) return false;
      this.chunks = [];
      this.view.replaceChildren();
      this.addBelow(found);
      look();
      this.say(found.log_end ? "" : "The job has printed nothing yet.");
      await this.fill();
    } catch (error) {
      if (generation === this.generation) this.say(error.message);
    }
    return generation === this.generation;
  }

  async showEnd(options) {
    const look = () => {
      this.view.scrollTop = this.view.scrollHeight;
      this.lastTop = this.view.scrollTop;
      if (this.following) this.following.isShown = true;
    };
    const isShown = await this.show({}, { ...options, look });
    this.placed();
    return isShown;
  }

  // Begin with the first row of this time; a time after all rows leads to the last ones.
  async showTime(value) {
    const at = new Date(value);
    if (Number.isNaN(at.getTime())) return;
    const look = () => {
      this.view.scrollTop = 0;
      this.view.querySelector(".log-row")?.classList.add("log-here");
    };
    const isShown = await this.show({ at: at.toISOString() }, { look });
    if (!isShown || this.chunks.length || !this.logEnd) return;
    if (await this.showEnd()) this.say("Nothing was printed at this time or later: this is the end.");
  }

  // The time of the row at the top of the view, in the reader's zone, as the field wants it.
  timeShown() {
    const top = this.view.getBoundingClientRect().top;
    const rows = [...this.view.querySelectorAll(".log-row")];
    const row = rows.find((one) => one.getBoundingClientRect().bottom > top);
    if (!row) return "";
    const at = new Date(row.querySelector(".log-time").title);
    return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
  }

  async showOffset(offset) {
    const isHere = () => this.chunks.some((chunk) => chunk.start <= offset && offset < chunk.end);
    this.sought = offset;
    if (isHere()) this.unfollow();
    else await this.show({ near: offset }, { look: () => this.lookAt(offset) });
    // In the middle, now that there are rows above. The reader may have gone on while they came.
    if (this.sought === offset && isHere() && !this.hasScrolled()) this.lookAt(offset);
  }

  lookAt(offset) {
    const rows = [...this.view.querySelectorAll(".log-row")];
    const row = rows.findLast((one) => Number(one.dataset.offset) <= offset);
    this.view.querySelector(".log-here")?.classList.remove("log-here");
    row?.classList.add("log-here");
    row?.scrollIntoView({ block: "center" });
    this.lookedAt = row && this.topOf(row);
  }

  topOf(row) {
    return row.getBoundingClientRect().top - this.view.getBoundingClientRect().top;
  }

  // Whether the reader moved the row that was looked at: rows that come above it do not.
  hasScrolled() {
    const row = this.view.querySelector(".log-here");
    return row !== null && Math.abs(this.topOf(row) - this.lookedAt) > 2;
  }

  addBelow(found) {
    if (!found.rows.length) return;
    const chunk = this.chunk(found, new Ansi(found.style));
    this.chunks.push(chunk);
    this.view.append(chunk.node);
    this.trim("top");
  }

  addAbove(found) {
    if (!found.rows.length) return;
    const chunk = this.chunk(found, new Ansi(found.style));
    const height = this.view.scrollHeight;
    this.chunks.unshift(chunk);
    this.view.prepend(chunk.node);
    // Not every browser keeps the rows in place (overflow-anchor), so it is off for all of them.
    this.view.scrollTop += this.view.scrollHeight - height;
    this.trim("bottom");
  }

  // A window of the log on the page. `style`: in which it begins; `ansi`: after its last row.
  chunk(found, style) {
    const chunk = {
      start: found.start,
      end: found.end,
      node: document.createElement("div"),
      style,
      ansi: style.copy(),
      line: found.first_line,
      rows: 0,
      texts: [],
    };
    for (const row of found.rows) this.addRow(chunk, row);
    return chunk;
  }

  // Draw the texts of a window again, with what is searched for.
  draw(chunk) {
    chunk.ansi = chunk.style.copy();
    for (const [at, node] of [...chunk.node.children].entries()) {
      node.querySelector(".log-text").replaceChildren(...this.parts(chunk.ansi, chunk.texts[at]));
    }
  }

  // The elements of one row's text, with what is searched for marked; plain text needs none.
  parts(ansi, text) {
    const pieces = ansi.pieces(text);
    const places = this.marks ? this.marks(pieces.map((piece) => piece.text).join("")) : [];
    let at = 0;
    return pieces.flatMap((piece) => {
      const parts = marked(piece.text, at, places);
      at += piece.text.length;
      const isPlain = !piece.classes.length && !piece.fg && !piece.bg;
      return isPlain ? parts : [element(piece, parts)];
    });
  }

  addRow(chunk, row) {
    const node = document.createElement("div");
    node.className = `log-row log-${row.stream}`;
    node.dataset.offset = row.offset;
    const number = document.createElement("span");
    number.className = "log-number";
    if (row.starts && chunk.line !== null) number.dataset.number = chunk.line;
    const time = document.createElement("span");
    time.className = "log-time";
    time.title = row.at;
    time.dataset.shown = clock.format(new Date(row.at));
    const text = document.createElement("span");
    text.className = "log-text";
    node.append(number, time);
    if (WORDS[row.stream]) {
      const word = document.createElement("span");
      word.className = "log-stream";
      word.textContent = WORDS[row.stream];
      node.append(word, " ");
    }
    chunk.texts.push(row.text);
    text.append(...this.parts(chunk.ansi, row.text));
    node.append(text, "\n");
    chunk.node.append(node);
    chunk.rows += 1;
    if (row.ends && chunk.line !== null) chunk.line += 1;
  }

  rows() {
    return this.chunks.reduce((sum, chunk) => sum + chunk.rows, 0);
  }

  trim(side) {
    while (this.chunks.length > 2 && this.rows() > MAX_ROWS) {
      if (side === "bottom") {
        this.chunks.pop().node.remove();
        continue;
      }
      const height = this.view.scrollHeight;
      this.chunks.shift().node.remove();
      this.view.scrollTop -= height - this.view.scrollHeight;
    }
  }

  // Ask for windows until the view is full and some rows lie beyond both of its edges.
  async fill() {
    const { generation } = this;
    if (this.filling === generation) return;
    this.filling = generation;
    try {
      for (;;) {
        if (generation !== this.generation || !this.chunks.length) return;
        const { scrollTop, scrollHeight, clientHeight } = this.view;
        const first = this.chunks[0];
        const last = this.chunks.at(-1);
        if (scrollHeight - scrollTop - clientHeight < NEAR && last.end < this.logEnd && !this.socket) {
          const found = await this.window({ offset: last.end });
          if (generation !== this.generation || !found.rows.length) return;
          this.addBelow(found);
          if (this.following) this.view.scrollTop = END; // the job printed while the end was asked for
        } else if (scrollTop < NEAR && first.start > 0) {
          const found = await this.window({ before: first.start });
          if (generation !== this.generation || !found.rows.length) return;
          this.addAbove(found);
        } else return;
      }
    } catch (error) {
      if (generation === this.generation) this.say(error.message);
    } finally {
      if (this.filling === generation) this.filling = null;
    }
  }

  scrolled() {
    this.leaveEnd();
    if (this.socket && this.isAtEnd()) return this.place(this.logEnd);
    this.fill();
    this.placed();
  }

  // Follow no more where the reader went up from the end, also while the connection is made. A scroll
  // event does not tell who scrolled; only a reader goes up: new rows move the end away. A browser adds
  // what the reader scrolled to a drawing in the same picture, so that the view may be lower than before.
  leaveEnd() {
    const isUp = this.isDrawn || this.view.scrollTop < this.lastTop;
    this.isDrawn = false;
    this.lastTop = this.view.scrollTop;
    if (isUp && this.following?.isShown && !this.isAtEnd()) this.unfollow();
  }

  isAtEnd() {
    return this.view.scrollHeight - this.view.scrollTop - this.view.clientHeight < 40;
  }

  // Move the slider to where the view is in the whole log.
  placed() {
    if (!this.chunks.length) return;
    const top = this.view.getBoundingClientRect().top;
    const shown =
      this.chunks.find((chunk) => chunk.node.getBoundingClientRect().bottom > top) ??
      this.chunks.at(-1);
    const box = shown.node.getBoundingClientRect();
    const within = box.height ? Math.max(0, Math.min(1, (top - box.top) / box.height)) : 0;
    const isEnd = this.isAtEnd() && this.chunks.at(-1).end >= this.logEnd;
    this.place(isEnd ? this.logEnd : shown.start + within * (shown.end - shown.start));
  }

  // Under the reader's hand it stays: the event of a scroll comes with the next picture of the browser.
  place(offset) {
    if (this.isPlacing) return;
    const place = this.part("place");
    place.max = this.logEnd;
    place.value = offset;
    place.setAttribute("aria-valuetext", `${Math.round((100 * place.value) / (this.logEnd || 1))} %`);
  }

  // -- following ----------------------------------------------------------------------------

  async follow() {
    this.part("follow").checked = true;
    const following = { isShown: false }; // this request to follow; a later one has its own connection
    this.following = following;
    await this.showEnd({ keepFollowing: true });
    if (this.following !== following) return;
    following.isShown = true;
    this.connect();
  }

  unfollow() {
    this.part("follow").checked = false;
    this.following = null;
    clearTimeout(this.again);
    this.queue = [];
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }

  connect() {
    const last = this.chunks.at(-1);
    const socket = openSocket(this.path("ws"), {
      attempt: this.attempt,
      offset: last?.end ?? 0,
      format: "json",
    });
    this.socket = socket;
    let asked = Date.now(); // since when it owes an answer; 0: it owes none
    let isAnswered = false; // whether it has answered a question; earlier versions answer none
    const question = () => {
      asked ||= Date.now();
      socket.send("");
    };
    socket.onopen = () => {
      asked = 0;
      question();
    };
    socket.onmessage = (event) => {
      asked = 0;
      if (this.socket !== socket) return;
      const frame = JSON.parse(event.data);
      if ("text" in frame) this.came(frame);
      else isAnswered = true;
    };
    // The kernel of a process that hangs keeps the connection, and a page sees no ping.
    const asking = setInterval(() => {
      if (this.socket !== socket) return clearInterval(asking);
      const isOwed = isAnswered || socket.readyState === WebSocket.CONNECTING;
      if (asked && isOwed && Date.now() - asked > SILENT) return this.lost(socket);
      if (socket.readyState === WebSocket.OPEN) question();
    }, ASK_EVERY);
    socket.onclose = (event) => {
      // A socket that was closed on purpose tells of it when another may be open.
      if (this.socket !== socket) return;
      if (event.code !== 1000) return this.lost(socket);
      this.drawQueued();
      this.socket = null;
      this.say("The log is complete.");
      this.part("follow").checked = false;
      this.following = null;
    };
  }

  // Go on where the log is, maybe at another controller.
  lost(socket) {
    this.drawQueued();
    this.socket = null;
    socket.close();
    if (!this.following) return;
    this.say("The connection was lost; trying again.");
    this.again = setTimeout(() => this.connect(), 1000);
  }

  // Rows are drawn some times a second: a job may print hundreds, each in a frame of its own, and
  // each drawing costs a layout.
  came(frame) {
    this.queue.push(frame);
    const wait = this.drawnAt + DRAW_EVERY - performance.now();
    this.drawing ??= setTimeout(() => this.drawQueued(), Math.max(wait, 0));
  }

  drawQueued() {
    this.drawing = null;
    this.drawnAt = performance.now();
    this.leaveEnd(); // the event of a scroll comes with the next picture of the browser, maybe after this
    const frames = this.queue.splice(0);
    if (!this.socket || !frames.length) return;
    this.say("");
    frames.forEach((frame) => this.addFrame(frame));
    while (this.chunks.length > 2 && this.rows() > MAX_ROWS) this.chunks.shift().node.remove();
    this.view.scrollTop = END; // without asking for the height, which costs another layout
    this.isDrawn = true;
  }

  addFrame(frame) {
    let chunk = this.chunks.at(-1);
    if (chunk && frame.offset < chunk.end) return;
    if (!chunk || chunk.end - chunk.start > WINDOW.size || chunk.rows > WINDOW.rows) {
      chunk = this.chunk({
        start: frame.offset,
        end: frame.offset,
        first_line: chunk ? chunk.line : 1,
        rows: [],
      }, chunk ? chunk.ansi.copy() : new Ansi());
      this.chunks.push(chunk);
      this.view.append(chunk.node);
    }
    for (const row of this.rowsOf(frame)) this.addRow(chunk, row);
    chunk.end = frame.end;
    this.logEnd = Math.max(this.logEnd, frame.end);
  }

  rowsOf(frame) {
    const lines = frame.text.split("\n");
    const rest = lines.pop();
    const row = (text, starts, ends) => ({ ...frame, text, starts, ends });
    const rows = lines.map((text, at) => row(text, at > 0 || this.atLineStart !== false, true));
    if (rest) rows.push(row(rest, rows.length > 0 || this.atLineStart !== false, false));
    this.atLineStart = !rest;
    return rows;
  }

  // -- searching ----------------------------------------------------------------------------

  // Search from the beginning on, and go to the first match at `from` or after it.
  async search(wanted, { from = this.chunks[0]?.start ?? 0 } = {}) {
    const regex = this.part("regex").checked;
    this.wanted = wanted;
    this.marks = wanted ? marksOf(wanted, regex) : null;
    this.matches = [];
    this.match = -1;
    // A search of a large log takes many requests: those of the one before would mix in.
    this.searching?.abort();
    const searching = new AbortController();
    this.searching = searching;
    const { generation } = this;
    // A reader who asked for another part of the log while it was searched stays there.
    const isLeft = () => generation !== this.generation;
    const isBare = () => !isLeft() && !this.chunks.length && !this.following;
    this.count("");
    if (!wanted) {
      this.redraw();
      if (this.attempt) setAddress({ search: "", regex: "", match: "" });
      return;
    }
    setAddress({ search: wanted, regex: regex ? "yes" : "" }, "#log");
    this.say("");
    try {
      for (let offset = 0; ; ) {
        const query = { attempt: this.attempt, text: wanted, offset, limit: 1000, regex };
        const found = await ask(this.path("search"), query, searching.signal);
        this.matches.push(...found.matches.map((match) => match.offset));
        offset = found.searched_to;
        const isDone = offset >= found.log_end;
        const percent = Math.floor((100 * offset) / (found.log_end || 1));
        const many = this.matches.length >= MAX_MATCHES;
        this.count(isDone ? "" : many ? "+" : `, ${percent} % searched`);
        if (this.match < 0 && !isLeft()) {
          const next = this.matches.findIndex((match) => match >= from);
          if (next >= 0) await this.goTo(next);
        }
        if (isDone || many) break;
      }
      if (isLeft()) return;
      if (this.match < 0 && this.matches.length) await this.goTo(0);
      else if (isBare()) await this.showEnd();
      this.redraw();
    } catch (error) {
      if (searching.signal.aborted) return;
      if (isBare() && !(await this.showEnd())) return;
      this.say(error.message);
    }
  }

  count(more) {
    const at = this.match >= 0 ? `${this.match + 1} of ` : "";
    this.more = more;
    this.part("count").textContent = this.wanted ? `${at}${this.matches.length}${more}` : "";
  }

  async step(by) {
    if (!this.matches.length) return;
    await this.goTo((this.match + by + this.matches.length) % this.matches.length);
  }

  async goTo(match) {
    this.match = match;
    this.count(this.more);
    setAddress({ match: String(this.matches[match]) }, "#log");
    await this.showOffset(this.matches[match]);
    this.redraw();
  }

  // Mark the search text in the rows that are shown.
  redraw() {
    for (const chunk of this.chunks) this.draw(chunk);
  }
}

// What finds a text, or a pattern that this browser knows too, in a row: [begin, end] of each place.
function marksOf(wanted, isRegex) {
  try {
    const source = isRegex ? wanted : wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const pattern = new RegExp(source, "gi");
    return (text) => [...text.matchAll(pattern)].map((match) => [match.index, match.index + match[0].length]);
  } catch {
    return null; // a pattern of RE2 alone: the line of a match is marked
  }
}

// The text of a piece as strings, and what of it is at one of these places as <mark> elements. The
// piece begins at `from` in its row.
function marked(text, from, places) {
  const parts = [];
  let at = 0;
  for (const [begin, end] of places) {
    const [first, last] = [Math.max(begin - from, at), Math.min(end - from, text.length)];
    if (first >= last) continue;
    if (first > at) parts.push(text.slice(at, first));
    const mark = document.createElement("mark");
    mark.textContent = text.slice(first, last);
    parts.push(mark);
    at = last;
  }
  if (at < text.length || !parts.length) parts.push(text.slice(at));
  return parts;
}

for (const root of document.querySelectorAll("[data-log]")) new LogView(root);
