// The page of one run: its jobs for all modules that offer them, and what of it stands in the address.

const given = document.getElementById("offered");
const listeners = [];
const CHANGES = { childList: true, characterData: true, subtree: true };

// The jobs as the page has them now: {id, label, group, attempts: [{id, number, state, isLive}]}, the
// newest attempt first.
export function jobs() {
  return JSON.parse(given.textContent).map(([id, label, group, attempts]) => ({
    id,
    label,
    group,
    attempts: attempts.map(([id, number, state, isLive]) => ({ id, number, state, isLive })),
  }));
}

// Act on the jobs now, and each time they have changed.
export function whenJobsChange(act) {
  listeners.push(act);
  act(jobs());
}

const offers = new WeakMap(); // what each choice offers

// Let the reader choose among these options. A list that is the same stays, as it may be unfolded.
export function offer(choice, options) {
  const told = JSON.stringify(options.map((one) => [one.value, one.text, one.disabled, one.dataset.live]));
  if (offers.get(choice) === told) return;
  offers.set(choice, told);
  const before = choice.value;
  choice.replaceChildren(...options);
  if (options.some((one) => one.value === before)) choice.value = before;
}

// Change parameters of the address, for a reload and to share it; an empty one goes.
export function setAddress(changes, hash = location.hash) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  history.replaceState(history.state, "", `${location.pathname}${query.size ? `?${query}` : ""}${hash}`);
}

new MutationObserver(() => listeners.forEach((act) => act(jobs()))).observe(given, CHANGES);
document.body.addEventListener("htmx:afterRequest", ({ detail }) => {
  if (detail.target.id !== "jobs" || !detail.successful) return;
  const asked = new URL(detail.pathInfo.finalRequestPath, location.href).searchParams;
  const names = ["find", "state", "sort", "page"];
  setAddress(Object.fromEntries(names.map((name) => [name, asked.get(name)])));
  // A link may have chosen other jobs than the form, which the next change of the run asks with. What
  // the form itself asked for is in it, and the reader may have typed on.
  if (detail.elt.id === "jobs-filter") return;
  for (const field of document.querySelectorAll("#jobs-filter [name]")) {
    if (field !== document.activeElement) field.value = asked.get(field.name) ?? "";
  }
});
