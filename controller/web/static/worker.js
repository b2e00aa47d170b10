// The port to the browser's stream. A page loads this first: the worker starts while the rest is read.
const user = document.querySelector('meta[name="fairlead-user"]').content;

export async function hub() {
  try {
    return new SharedWorker(new URL("stream.js", import.meta.url), { type: "module", name: user }).port;
  } catch {
    const { Hub } = await import("./stream.js"); // a browser without shared workers: a stream of its own
    const { port1, port2 } = new MessageChannel();
    new Hub().join(port1);
    return port2;
  }
}

export const first = hub();
