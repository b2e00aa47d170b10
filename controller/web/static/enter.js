// The page of a one-time link. The link's code is behind the "#": browsers send that to nobody, and
// it does not stay in the address. Whoever followed a link of somebody else sees whose login it is.
const form = document.getElementById("enter");
const who = document.getElementById("who");

function refuse(message) {
  who.textContent = message;
  who.className = "refusal";
}

let asked = 0; // how many links were opened in this tab

async function ask() {
  const link = ++asked;
  form.hidden = true;
  form.elements.code.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  const body = new URLSearchParams(new FormData(form));
  try {
    const answer = await fetch("/dashboard/enter/who", { method: "POST", body });
    const said = await answer.json();
    if (link !== asked) return;
    if (!answer.ok) return refuse(said.error.message);
    who.className = "";
    who.textContent = `The link logs this browser in as ${said.user} (${said.role}).`;
    form.hidden = false;
    form.querySelector("button").focus();
  } catch {
    if (link === asked) refuse("The controller does not answer. Run `fairlead dashboard` again.");
  }
}

// A code works once: the answer to a second click would be a refusal, and the first one's login be lost.
form.addEventListener("submit", (event) => {
  if (form.dataset.sent === form.elements.code.value) event.preventDefault();
  form.dataset.sent = form.elements.code.value;
});
// Another link in the same tab differs behind the "#" alone, so that the page is not loaded again.
addEventListener("hashchange", ask);
ask();
