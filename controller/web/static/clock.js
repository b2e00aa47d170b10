// The controller's clock, which ages are counted by: the browser's own may be wrong.
const told = Number(document.querySelector('meta[name="fairlead-now"]')?.content) * 1000;
// The answer's time, not now: between the two a large page is read and parsed.
const begun = performance.getEntriesByType("navigation")[0]?.responseStart ?? 0;
const opened = Date.now() - performance.now() + begun;
let ahead = told ? told - opened : 0; // milliseconds by which the controller's clock is ahead

export const now = () => Date.now() + ahead;

// The controller said its time (Unix seconds) just now.
export function setClock(seconds) {
  ahead = seconds * 1000 - Date.now();
}
