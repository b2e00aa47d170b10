// Requests of a page's modules to the API, in the name of the page.

const API = "/dashboard/api/v1/";
const page = document.querySelector('meta[name="fairlead-page"]').content;

function address(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  return `${API}${path}?${new URLSearchParams(given)}`;
}

// The answer. Raises an Error with the controller's words.
export async function ask(path, query = {}, signal = undefined) {
  const answer = await fetch(address(path, query), {
    headers: { "X-Fairlead-Page": page },
    signal,
  });
  if (answer.ok) return answer.json();
  let message = `the controller answered ${answer.status}`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // It is not the controller that answered.
  }
  throw new Error(message);
}

export function openSocket(path, query = {}) {
  const url = new URL(address(path, query), location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  // A page can set no header of a WebSocket's request, and addresses end up in logs of servers.
  const socket = new WebSocket(url, ["fairlead", `fairlead.page.${page}`]);
  socket.binaryType = "arraybuffer";
  return socket;
}
