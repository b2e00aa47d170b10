// The run that the page shows, asked for once for all modules that offer its jobs.

import { ask } from "./asking.js";

const listeners = [];
let latest = null;

export async function askForRun(id) {
  latest = await ask(`runs/${id}`);
  for (const act of listeners) act(latest);
  return latest;
}

// Act on the run now, if it is known, and each time it was asked for.
export function whenAskedFor(act) {
  listeners.push(act);
  if (latest) act(latest);
}

// Let the reader choose among these options. A list that is the same stays, as it may be unfolded.
export function offer(choice, options) {
  const told = (every) => JSON.stringify([...every].map((one) => [one.value, one.text, one.disabled, one.dataset]));
  if (told(choice.options) === told(options)) return;
  const before = choice.value;
  choice.replaceChildren(...options);
  if (options.some((one) => one.value === before)) choice.value = before;
}
