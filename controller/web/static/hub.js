// The worker that all pages of one user in this browser share: it holds their one live stream.
import { Hub } from "./stream.js";

const hub = new Hub();
addEventListener("connect", ({ ports: [port] }) => hub.join(port));
