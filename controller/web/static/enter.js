// The page of a one-time link. The link's code is behind the "#": browsers send that to nobody, and
// it does not stay in the address. Whoever followed a link of somebody else sees whose login it is.
const form = document.getElementById("enter");
const who = document.getElementById("who");

function refuse(message) {
  who.textContent = message;
  who.className = "refusal";
}

async function ask() {
  form.elements.code.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  const body = new URLSearchParams(new FormData(form));
  try {
    const answer = await fetch("/dashboard/enter/who", { method: "POST", body });
    const said = await answer.json();
    if (!answer.ok) return refuse(said.error.message);
    who.textContent = `The link logs this browser in as ${said.user} (${said.role}).`;
    form.hidden = false;
    form.querySelector("button").focus();
  } catch {
    refuse("The controller does not answer. Run `fairlead dashboard` again.");
  }
}

ask();
