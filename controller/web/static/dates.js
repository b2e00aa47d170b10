// <time datetime> as an age that a reader understands; the exact value in the reader's zone on hover.
// Within a sentence (class "moment"), it is the time of the clock, with the day unless it is today.
import { now } from "./clock.js";

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const steps = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];

export function lasting(seconds) {
  const [, unit, name] = steps.find(([limit]) => seconds < limit);
  return `${Math.floor(seconds / unit)} ${name}`;
}

function age(seconds) {
  const text = lasting(Math.abs(seconds));
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}

export function showDates(root) {
  for (const shown of root.querySelectorAll("time[datetime]")) {
    const at = new Date(shown.dateTime);
    const isToday = at.toDateString() === new Date(now()).toDateString();
    const text = shown.classList.contains("moment")
      ? (isToday ? clock : day).format(at)
      : age((now() - at) / 1000);
    if (shown.textContent !== text) shown.textContent = text;
    if (!shown.title) shown.title = exact.format(at);
  }
}
