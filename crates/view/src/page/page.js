// The page of `rgaps view`: fetches state.json once a second and draws it. Names come from other programs, so the page only
// ever sets them as text, never as HTML.
"use strict";

const EVERY_MS = 1000;
const HEIGHT = { plain: 58, image: 162 };
const GAP = 14;
const token = new URLSearchParams(location.search).get("token");
const boxes = new Map();

function address(path, query = {}) {
  const all = new URLSearchParams(query);
  if (token !== null) all.set("token", token);
  return all.size ? `${path}?${all}` : path;
}

function byId(id) {
  return document.getElementById(id);
}

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; unit++) count /= 1024;
  return `${unit ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

function rate(perSecond) {
  return perSecond >= 100 || perSecond === 0 ? perSecond.toFixed(0) : perSecond.toFixed(1);
}

// Rows are arrays of texts, numbers and elements. Cells that begin with a digit are aligned to the right.
function table(id, heads, rows, none) {
  const isNumber = (cell, at) => at > 0 && !(cell instanceof Element) && /^\d/.test(cell);
  const body = rows.map((row) => {
    const line = element("tr");
    row.forEach((cell, at) => {
      const made = element("td", cell instanceof Element ? "" : cell, isNumber(cell, at) ? "number" : "");
      if (cell instanceof Element) made.append(cell);
      line.append(made);
    });
    return line;
  });
  const head = element("tr");
  heads.forEach((text, at) => head.append(element("th", text, rows.length && isNumber(rows[0][at], at) ? "number" : "")));
  if (!rows.length) head.replaceChildren(element("td", none));
  byId(id).replaceChildren(head, ...body);
}

// Returns the box with this key. Reuses its element as long as it is drawn.
function box(key, kind, name, line) {
  let made = boxes.get(key);
  if (!made) {
    made = element("div", "", `box ${kind}`);
    made.dataset.key = key;
    made.append(element("b"), element("span"));
    byId("picture").append(made);
    boxes.set(key, made);
  }
  made.isDrawn = true;
  made.title = name;
  made.children[0].textContent = name;
  made.children[1].textContent = line;
  return made;
}

function place(made, column, top, height) {
  made.style.left = `${column * 37}%`;
  made.style.top = `${top}px`;
  made.style.height = `${height}px`;
  made.middle = top + height / 2;
}

// Loads the picture of an image topic, and replaces the old one when the new one is loaded.
function thumbnail(made, topic) {
  if (made.isLoading) return;
  const next = new Image();
  next.alt = `newest image of ${topic}`;
  made.isLoading = true;
  next.onload = () => {
    made.isLoading = false;
    if (made.children[2]) made.children[2].replaceWith(next);
    else made.append(next);
  };
  // No picture has come yet.
  next.onerror = () => { made.isLoading = false; };
  next.src = address("thumbnail", { topic, at: Date.now() });
}

function drawTopics(state) {
  const shown = new Map(state.shown.map((row) => [row.topic, row]));
  const members = new Set(state.members.map((member) => member.topic));
  let top = 0;
  for (const row of state.topics.filter((row) => members.has(row.topic))) {
    const { schemas = [], refused = null } = shown.get(row.topic) ?? {};
    const isImage = schemas.includes("foxglove.RawImage");
    const line = refused ?? `${rate(row.messages_per_s)} Hz, ${bytes(row.bytes_per_s)}/s`;
    const made = box(`topic ${row.topic}`, "topic", row.topic, line);
    made.classList.toggle("refused", refused !== null);
    if (isImage) thumbnail(made, row.topic);
    const height = isImage ? HEIGHT.image : HEIGHT.plain;
    place(made, 1, top, height);
    top += height + GAP;
  }
  return top;
}

// Draws topics with their publishers on the left and their subscribers on the right. Returns the arrows.
function drawProcesses(state) {
  const columns = [new Map(), new Map()];
  for (const member of state.members) {
    const isLeft = member.role === "publisher" || member.role === "left";
    const column = columns[isLeft ? 0 : 1];
    const key = `${isLeft ? "from" : "to"} ${member.process} ${member.pid}`;
    if (!column.has(key)) column.set(key, []);
    column.get(key).push(member);
  }
  const rates = new Map(state.topics.map((row) => [row.topic, row.messages_per_s]));
  const arrows = [];
  let bottom = 0;
  columns.forEach((column, at) => {
    const topicOf = (member) => boxes.get(`topic ${member.topic}`);
    const mean = (all) => all.reduce((sum, member) => sum + topicOf(member).middle, 0) / all.length;
    const sorted = [...column].sort(([, one], [, other]) => mean(one) - mean(other));
    let top = 0;
    for (const [key, all] of sorted) {
      const { process, pid, role } = all[0];
      const made = box(key, "process", process, role === "left" ? "has left" : `process ${pid}`);
      top = Math.max(top, mean(all) - HEIGHT.plain / 2);
      place(made, at * 2, top, HEIGHT.plain);
      top += HEIGHT.plain + GAP;
      for (const member of all) {
        const ends = at ? [topicOf(member), made] : [made, topicOf(member)];
        const quiet = rates.get(member.topic) > 0 && role !== "left" ? "" : "quiet";
        arrows.push({ ends, className: `${member.role} ${quiet}` });
      }
    }
    bottom = Math.max(bottom, top);
  });
  return [bottom, arrows];
}

// Draws this host and the hosts that it has links to, below the rest.
function drawHosts(state, top) {
  if (!state.links.length) return [top, []];
  const arrows = [];
  const here = box("here", "host", state.daemon.host || "this host", "this host");
  const height = state.links.length * (HEIGHT.plain + GAP);
  place(here, 0, top + (height - GAP - HEIGHT.plain) / 2, HEIGHT.plain);
  state.links.forEach((link, at) => {
    const flows = `${rate(link.messages_out_per_s)} Hz out, ${rate(link.messages_in_per_s)} Hz in`;
    const made = box(`host ${link.host}`, "host", link.host, link.state === "linked" ? flows : link.state);
    place(made, 2, top + at * (HEIGHT.plain + GAP), HEIGHT.plain);
    const quiet = link.messages_out_per_s + link.messages_in_per_s > 0 ? "" : "quiet";
    arrows.push({ ends: [here, made], className: quiet });
  });
  return [top + height, arrows];
}

function drawArrows(arrows) {
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const marker = svg("marker", { id: "head", viewBox: "0 0 6 6", refX: 6, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto" });
  marker.append(svg("path", { d: "M0 0 L6 3 L0 6 z" }));
  const lines = arrows.map(({ ends: [from, to], className }) => {
    const [x, y] = [from.offsetLeft + from.offsetWidth, from.middle];
    const [u, v] = [to.offsetLeft, to.middle];
    const bend = (u - x) / 2;
    const d = `M${x} ${y} C${x + bend} ${y} ${u - bend} ${v} ${u} ${v}`;
    return svg("path", { d, class: className, "marker-end": "url(#head)" });
  });
  byId("arrows").replaceChildren(marker, ...lines);
}

function drawPicture(state) {
  for (const made of boxes.values()) made.isDrawn = false;
  const middle = drawTopics(state);
  const [sides, arrows] = drawProcesses(state);
  const [bottom, links] = drawHosts(state, Math.max(middle, sides));
  for (const [key, made] of boxes) {
    if (made.isDrawn) continue;
    made.remove();
    boxes.delete(key);
  }
  byId("picture").style.height = `${bottom}px`;
  drawArrows([...arrows, ...links]);
  const more = state.topics_without_members;
  byId("legend").textContent = state.members.length
    ? `Publishers, topics, subscribers. Dashed: tools that only look. Grey: nothing was published in the last second.${more ? ` ${more} more topics are only in the table.` : ""}`
    : "Nobody publishes or subscribes here.";
}

function drawTables(state) {
  const topics = state.topics.map((row) => [row.topic, row.domain ?? "-", row.publishers, row.subscribers + row.remote_subscribers,
    rate(row.messages_per_s), `${bytes(row.bytes_per_s)}/s`, row.messages, row.missed, row.waiting ? `${row.waiting} back-pressured` : ""]);
  table("topics", ["topic", "domain", "publishers", "subscribers", "Hz", "rate", "messages", "missed", ""], topics, "none");
  const links = state.links.map((link) => [link.host, link.state, link.lanes, `${rate(link.messages_out_per_s)} Hz`,
    `${bytes(link.bytes_out_per_s)}/s`, `${rate(link.messages_in_per_s)} Hz`, `${bytes(link.bytes_in_per_s)}/s`]);
  table("links", ["host", "state", "lanes", "out", "", "in", ""], links, "none: this host has no links");
  const pools = state.pools.map((pool) => {
    const meter = element("meter");
    meter.max = pool.cap_bytes;
    meter.value = pool.leased_bytes;
    return [pool.domain, pool.access, meter, bytes(pool.leased_bytes), bytes(pool.allocated_bytes), bytes(pool.cap_bytes)];
  });
  table("pools", ["domain", "access", "", "leased", "allocated", "cap"], pools, "none");
}

function draw(state) {
  const { daemon, view } = state;
  byId("daemon").textContent = `realm ${daemon.realm}${daemon.host ? ` on ${daemon.host}` : ""}, daemon ${daemon.version} (process ${daemon.pid}), ${state.clients.length} processes`;
  byId("view").textContent = `At most ${view.rate} messages a second of each topic, of at most ${bytes(view.max_bytes)}. ` +
    `${view.clients} of ${view.clients_max} WebSocket clients; ${view.sent} messages for them, ${view.replaced} left out because a client was slow.`;
  drawPicture(state);
  drawTables(state);
}

async function refresh() {
  const error = byId("error");
  try {
    const answer = await fetch(address("state.json"));
    const text = await answer.text();
    if (!answer.ok) throw new Error(answer.status === 503 ? JSON.parse(text).error : text);
    draw(JSON.parse(text));
    error.hidden = true;
    document.body.dataset.drawn = "yes";
  } catch (failure) {
    error.textContent = failure instanceof TypeError ? "rgaps view does not answer: it has ended, or the network is down" : failure.message;
    error.hidden = false;
  }
}

async function run() {
  for (;;) {
    // A hidden page asks for nothing.
    if (!document.hidden) await refresh();
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}

run();
