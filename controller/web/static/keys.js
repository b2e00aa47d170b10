// Keys: `/` search, `j` and `k` rows, `g` and a letter pages (data-key in the navigation).
const rows = () => [...document.querySelectorAll("[data-row]")];

function move(step) {
  const every = rows();
  const now = every.indexOf(document.activeElement);
  const next = every[Math.min(Math.max(now + step, 0), every.length - 1)];
  if (next) next.focus();
}

export function listenForKeys() {
  let going = 0;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable], .xterm, dialog");
    if (event.ctrlKey || event.metaKey || event.altKey || typing) return;
    if (Date.now() - going < 1500) {
      going = 0;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) location.assign(link.href);
      return;
    }
    if (event.key === "g") going = Date.now();
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "/") {
      const search = document.querySelector('input[type="search"]');
      if (!search) return;
      event.preventDefault();
      search.focus();
    }
  });
}
