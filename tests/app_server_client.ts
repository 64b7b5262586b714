// A small client of the App Server: it starts one, runs a turn, allows what the turn asks, and prints what came of it.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import type {
  ApprovalDecision, ClientRequest, InitializeResponse, ServerNotification, ServerRequest, ThreadStartResponse,
  TurnStartResponse,
} from "./ClientRequest";

type Incoming = ServerNotification | ServerRequest | { jsonrpc: "2.0"; id: number | string; result: unknown };
type Call = ClientRequest extends infer R ? (R extends { id: number | string } ? Omit<R, "id" | "jsonrpc"> : never) : never;

const server = spawn(process.argv[2]!, process.argv.slice(3), { stdio: ["pipe", "pipe", "inherit"] });
const waiting = new Map<number | string, (result: unknown) => void>();
let next = 1;

function send(message: object): void {
  server.stdin.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
}

function call<T>(request: Call): Promise<T> {
  const id = next++;
  send({ id, ...request });
  return new Promise((resolve) => waiting.set(id, (result) => resolve(result as T)));
}

function answer(request: ServerRequest): void {
  const result: ApprovalDecision = { decision: "allow", reason: `launch from ${String(request.params.arguments["pad"])}` };
  send({ id: request.id, result });
}

const done = new Promise<void>((resolve) => {
  createInterface({ input: server.stdout }).on("line", (line) => {
    const message = JSON.parse(line) as Incoming;
    if (!("method" in message)) {
      waiting.get(message.id)?.(message.result);
    } else if (message.method === "approval/request") {
      answer(message);
    } else if (message.method === "item/completed" && message.params.type === "toolCall") {
      console.log(`tool ${message.params.status}`);
    } else if (message.method === "approval/resolved") {
      console.log(`approval ${message.params.decision}: ${message.params.reason}`);
    } else if (message.method === "turn/completed") {
      console.log(`turn ${message.params.status}: ${String(message.params.finalOutput)}`);
      resolve();
    }
  });
});

async function main(): Promise<void> {
  const hello = await call<InitializeResponse>({ method: "initialize", params: { clientInfo: { name: "node" } } });
  console.log(hello.protocolVersion);
  const thread = await call<ThreadStartResponse>({ method: "thread/start" });
  const input = [{ type: "text", text: "Launch." }];
  const turn = await call<TurnStartResponse>({ method: "turn/start", params: { threadId: thread.threadId, input } });
  console.log(turn.status);
  await done;
  server.stdin.end();
}

void main();
