// A browser sends nobody what is behind the "#" of an address, and keeps it when it is led to the
// login. So the form takes it along: a link to a run's log leads there also through a login.
const form = document.querySelector("form");
const address = new URL(form.action);
address.searchParams.set("next", address.searchParams.get("next") + location.hash);
form.action = address;
