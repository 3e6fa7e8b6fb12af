"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const NAMED_AT_MOST = 160;
  const ROWS = 200;
  const RESULTS = 12;

  // Every text reaches the page through here, as text.
  function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (value === undefined || value === false) continue;
      if (name === "class") made.className = value;
      else made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== "" && child !== null && child !== undefined));
    return made;
  }
  const mono = (text) => element("span", { class: "name" }, text);
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const last = (name) => name.slice(name.lastIndexOf("/") + 1);

  // --- the fleet, unfolded ---

  const types = data.types.map(([driver, numa, product, flags, capacity, attributes, taints]) => ({
    driver, numa, product, shared: (flags & 1) > 0, published: (flags & 2) === 0, closed: (flags & 4) > 0,
    capacity: capacity.map(([name, text, total, unit, step]) => ({ name, text, total, unit, step })), attributes, taints,
  }));
  const devices = [];
  const nodes = data.nodes.map(([name, kind, layout, remarks, own], index) => {
    const node = { index, name, kind, remarks, layout: layout < 0 ? null : data.layouts[layout], devices: [] };
    data.kinds[kind].forEach(([type, device, pool], place) => {
      const made = { id: devices.length, node, type: types[type], name: device, pool: pool || name, own: own[place] || [] };
      devices.push(made);
      node.devices.push(made);
    });
    node.title = name || "reached from several nodes";
    return node;
  });
  const moments = data.moments.map((moment) => {
    const claims = moment.claims.map(([name, pods = [], shares = [], cpus = [], created = "", remarks = []]) => ({
      name, remarks, created: typeof created === "number" ? new Date(created * 1000).toISOString().replace(".000", "") : created,
      // A pod's name: so much of it is as in the claim's, then comes the rest.
      pods: pods.map(([common, rest = ""]) => name.slice(0, name.indexOf("/") + 1 + common) + rest),
      shares: shares.map(([device, consumed = [], admin = 0]) => ({ device: devices[device], admin: admin > 0, consumed: consumed.map((number) => moment.amounts[number]) })),
      cpus: cpus.map(([node, list]) => ({ node: nodes[node], list })),
    }));
    const shares = new Map();
    for (const claim of claims) {
      for (const share of claim.shares) {
        if (!shares.has(share.device.id)) shares.set(share.device.id, []);
        shares.get(share.device.id).push({ claim, ...share });
      }
    }
    return { title: moment.title, claims, shares, blocked: new Set(moment.blocked), unknown: new Set(moment.unknown), fragmented: moment.fragmented };
  });
  const latest = moments[moments.length - 1];
  let shown = moments.length > 1 ? moments : [latest];

  // --- what a device is at a moment ---

  const sharesOf = (moment, device) => moment.shares.get(device.id) || [];

  function consumed(moment, device, capacity) {
    let sum = 0;
    for (const share of sharesOf(moment, device)) {
      if (share.admin) continue;
      // How much of a shared device somebody has is not always known; what is not known is not free.
      if (!share.consumed.length) return capacity.total;
      for (const [name, , amount] of share.consumed) if (last(name) === last(capacity.name)) sum += amount;
    }
    return sum;
  }
  const unclear = (moment, device) => device.type.shared && sharesOf(moment, device).some((share) => !share.admin && !share.consumed.length);
  function fraction(share, device) {
    if (!device.type.shared || !share.consumed.length) return 1;
    let most = 0;
    for (const [name, , amount] of share.consumed) {
      const capacity = device.type.capacity.find((each) => last(each.name) === last(name));
      if (capacity && capacity.total) most = Math.max(most, amount / capacity.total);
    }
    return most;
  }
  // Where nobody knows what claims hold, nothing is known to be free.
  const unknown = (moment, device) => moment.unknown.has(device.type.driver) && !sharesOf(moment, device).length;
  function used(moment, device) {
    if (unknown(moment, device)) return 1;
    const holding = sharesOf(moment, device).filter((share) => !share.admin);
    if (!holding.length) return 0;
    if (!device.type.shared) return 1;
    if (unclear(moment, device)) return 0.5;
    return Math.min(1, Math.max(...device.type.capacity.map((each) => (each.total ? consumed(moment, device, each) / each.total : 0))));
  }
  function amount(value, like) {
    if (!/[KMGTPE]i?$/.test(like)) return String(Math.round(value * 1000) / 1000);
    const binary = like.endsWith("i");
    const step = binary ? 1024 : 1000;
    const units = ["", "K", "M", "G", "T", "P", "E"];
    let power = 0;
    while (Math.abs(value) >= step && power < units.length - 1) { value /= step; power += 1; }
    return `${Math.round(value * 100) / 100}${units[power]}${binary && power ? "i" : ""}`;
  }
  function state(moment, device) {
    const part = used(moment, device);
    const words = [];
    if (unknown(moment, device)) words.push("holder unknown");
    else if (!device.type.published) words.push("held, but in no ResourceSlice");
    else if (moment.blocked.has(device.id)) words.push("blocked: what it draws on is held by others");
    else if (unclear(moment, device)) words.push("held in part, how much is not known");
    else if (part >= 1) words.push("held");
    else if (part > 0) words.push("partly held");
    else words.push("free");
    if (device.type.closed) words.push("tainted");
    return words.join(", ");
  }
  // What a capacity is an amount of, and what of a device a claim has.
  const called = (capacity) => capacity.unit || last(capacity.name);
  function sharedOut(device, share) {
    return share.consumed.map(([name, text]) => {
      const capacity = device.type.capacity.find((each) => last(each.name) === last(name));
      return `${text} ${capacity ? called(capacity) : last(name)}`;
    }).join(", ");
  }
  function amounts(moment, device) {
    if (!device.type.shared) return device.type.capacity.map((each) => `${called(each)} ${each.text}`);
    if (unclear(moment, device) || unknown(moment, device)) return device.type.capacity.map((each) => `${called(each)} ${each.text} in all`);
    return device.type.capacity.map((each) => {
      const free = Math.max(0, each.total - consumed(moment, device, each));
      return `${called(each)} ${amount(free, each.text)} of ${each.text} free`;
    });
  }
  function holders(moment, device) {
    return sharesOf(moment, device).map((share) => {
      const what = sharedOut(device, share);
      const pods = share.claim.pods.filter((pod) => pod !== share.claim.name);
      return `${share.claim.name}${what ? ` (${what})` : ""}${share.admin ? ", admin access" : ""}${pods.length ? `, pod ${pods.join(", ")}` : ""}`;
    });
  }
  function described(moment, device) {
    const held = holders(moment, device);
    return [
      `${device.name}: ${state(moment, device)}`,
      [device.type.driver, device.type.product, device.type.numa >= 0 ? `NUMA ${device.type.numa}` : "no NUMA node"].filter(Boolean).join(" · "),
      ...amounts(moment, device),
      ...held.map((each) => `held by ${each}`),
      ...device.type.taints.map((each) => `taint ${each}`),
    ].join("\n");
  }
  function classes(moment, device) {
    return [
      device.type.closed ? "tainted" : "", moment.blocked.has(device.id) ? "blocked" : "",
      unknown(moment, device) ? "unknown" : "", device.type.published ? "" : "ghost", device.type.shared ? "wide" : "",
    ].filter(Boolean).join(" ");
  }
  function boxes(node) {
    const numbers = [...new Set(node.devices.map((device) => device.type.numa))].sort((a, b) => a - b);
    if (numbers[0] === -1) numbers.push(numbers.shift());
    return numbers.map((numa) => ({
      numa, title: numa < 0 ? (numbers.length > 1 ? "no NUMA node" : "") : `NUMA ${numa}`,
      devices: node.devices.filter((device) => device.type.numa === numa),
    }));
  }
  const isOn = (claim, node) => claim.shares.some((share) => share.device.node === node) || claim.cpus.some((each) => each.node === node);
  const numbers = (list) => list.split(",").filter(Boolean).flatMap((part) => {
    const [low, high] = part.split("-").map(Number);
    return Array.from({ length: (high ?? low) - low + 1 }, (_, index) => low + index);
  });
  // What devices of one node share out in different steps is not added up.
  const inSteps = new Set();
  for (const node of nodes) {
    const steps = new Map();
    for (const { type } of node.devices.filter((each) => each.type.shared)) {
      for (const { name, step } of type.capacity.filter((each) => !each.unit)) {
        const unit = `${type.driver} ${name}`;
        if (steps.has(unit) && steps.get(unit) !== step) inSteps.add(unit);
        steps.set(unit, step);
      }
    }
  }
  // Units of some nodes: whole devices by driver, shared ones by capacity, CPUs where they are known one by one.
  function units(moment, some) {
    const found = new Map();
    const add = (name, like, total, free, tainted, unclear = 0) => {
      const unit = found.get(name) || { name, like, total: 0, free: 0, tainted: 0, unclear: 0 };
      unit.total += total; unit.free += free; unit.tainted += tainted; unit.unclear += unclear;
      found.set(name, unit);
    };
    for (const node of some.filter((each) => each.layout)) {
      const all = node.layout[3].flatMap((box) => numbers(box[3]));
      const held = new Set(moment.claims.flatMap((claim) => claim.cpus.filter((each) => each.node === node).flatMap((each) => numbers(each.list))));
      add("CPUs", "", all.length, moment.unknown.has("CPUs") ? 0 : all.filter((cpu) => !held.has(cpu)).length, 0, moment.unknown.has("CPUs") ? all.length : 0);
    }
    for (const device of some.flatMap((node) => node.devices)) {
      const { type } = device;
      if (!type.published) continue;
      const lost = unknown(moment, device);
      if (!type.shared) {
        const open = used(moment, device) === 0 && !moment.blocked.has(device.id);
        add(type.driver, "", 1, Number(open && !type.closed), Number(open && type.closed), Number(lost));
      } else {
        for (const each of type.capacity) {
          const free = lost ? 0 : Math.max(0, each.total - consumed(moment, device, each));
          const name = last(each.name);
          const unit = each.unit || (type.driver.endsWith(`.${name}`) ? type.driver : `${type.driver} ${name}`);
          const label = !each.unit && inSteps.has(`${type.driver} ${each.name}`) && each.step ? `${unit} in steps of ${each.step}` : unit;
          add(label, each.text, each.total, type.closed ? 0 : free, type.closed ? free : 0, lost ? each.total : 0);
        }
      }
    }
    return [...found.values()];
  }
  const freeText = (moment, node) => units(moment, [node]).map((unit) => `${unit.name} ${amount(unit.free, unit.like)} of ${amount(unit.total, unit.like)} free`).join(" · ");

  // --- parts ---

  function cell(moment, device, named) {
    const made = element("span", { class: `device ${classes(moment, device)}`, "data-device": device.id, "data-moment": moments.indexOf(moment) });
    made.style.setProperty("--used", `${Math.round(used(moment, device) * 100)}%`);
    if (named) {
      const held = [...new Set(sharesOf(moment, device).map((share) => share.claim.name))];
      // The second line has its room whether somebody holds the device or not: the layout stays.
      // How much of a shared device is free does not follow from who holds a part of it.
      const left = device.type.shared ? amounts(moment, device).join(", ") : "";
      made.append(mono(device.name), element("small", {}, ` ${[device.type.product, left].filter(Boolean).join(" · ")}`), held.length ? element("strong", {}, held.join(", ")) : element("small", { class: "state" }, state(moment, device)));
    }
    return made;
  }
  function badges(moment, node) {
    const made = node.remarks.map((remark) => element("span", { class: "badge bad", title: remark }, remark.split(":")[0].slice(0, 24)));
    const pieces = moment.fragmented[node.index];
    if (pieces) made.push(element("span", { class: "badge piece", title: `${pieces.join(", ")}: enough is free for a whole NUMA node, and none is whole` }, "fragmented"));
    return made;
  }
  function card(moment, node, named) {
    const free = freeText(moment, node);
    const pieces = moment.fragmented[node.index];
    const label = [`node ${node.title}`, free ? `free ${free}` : "no devices", pieces ? `fragmented: ${pieces.join(", ")}` : "", ...node.remarks].filter(Boolean).join("; ");
    return element("a", { class: "card", href: `#/node=${encodeURIComponent(node.name)}`, "data-node": node.index, tabindex: "-1", "aria-label": label },
      element("span", { class: "title" }, mono(node.title), ...badges(moment, node)),
      element("span", { class: "free" }, free ? `free: ${free}` : "publishes no devices"),
      element("span", { class: `boxes ${named ? "named" : ""}`, "aria-hidden": "true" },
        ...boxes(node).map((box) => element("span", { class: "numa" },
          box.title ? element("small", {}, box.title) : "",
          element("span", { class: "cells" }, ...box.devices.map((device) => cell(moment, device, named)))))));
  }
  function kindTitle(members) {
    const counts = new Map();
    for (const device of members[0].devices) {
      const key = [device.type.driver, device.type.product].filter(Boolean).join(" ");
      counts.set(key, (counts.get(key) || 0) + 1);
    }
    const what = [...counts].map(([key, count]) => `${count} × ${key}`).join(", ") || "no devices";
    return `${plural(members.length, "node")} with ${what}`;
  }

  // --- the map ---

  const FILTERS = {
    all: ["all", () => true],
    free: ["with something free", (moment, node) => units(moment, [node]).some((unit) => unit.free > 0)],
    full: ["full", (moment, node) => (node.devices.length > 0 || node.layout) && units(moment, [node]).every((unit) => unit.free + unit.unclear === 0)],
    fragmented: ["fragmented", (moment, node) => Boolean(moment.fragmented[node.index])],
    tainted: ["with tainted devices", (moment, node) => node.devices.some((device) => device.type.closed)],
    odd: ["with remarks", (moment, node) => node.remarks.length > 0],
  };
  if (moments.length > 1) FILTERS.changed = ["what changes", (moment, node) => heldOn(moments[0], node) !== heldOn(latest, node)];
  // Who holds what of a node, to compare two moments.
  function heldOn(moment, node) {
    const shares = node.devices.flatMap((device) => sharesOf(moment, device).map((share) => [device.name, share.claim.name, sharedOut(device, share)]));
    const cpus = moment.claims.flatMap((claim) => claim.cpus.filter((each) => each.node === node).map((each) => [claim.name, each.list]));
    return JSON.stringify([...shares, ...cpus].sort());
  }
  let filter = "all";
  let named = devices.length <= NAMED_AT_MOST;

  function choices(fieldset, name, options, chosen, change) {
    for (const [value, title] of options) {
      const input = element("input", { type: "radio", name, value, checked: value === chosen });
      input.addEventListener("change", () => change(value));
      fieldset.append(element("label", {}, input, title));
    }
  }
  function totalOf(moment, unit) {
    const share = (value) => `${unit.total ? (100 * value) / unit.total : 0}%`;
    const held = element("i", {});
    held.style.width = share(unit.total - unit.free - unit.tainted - unit.unclear);
    const unclearPart = element("i", { class: "unclear" });
    unclearPart.style.width = share(unit.unclear);
    const tainted = element("i", { class: "tainted" });
    tainted.style.width = share(unit.tainted);
    const words = `${amount(unit.free, unit.like)} of ${amount(unit.total, unit.like)} free${unit.tainted ? `, ${amount(unit.tainted, unit.like)} tainted` : ""}${unit.unclear ? `, ${amount(unit.unclear, unit.like)} not known` : ""}`;
    return [element("div", { class: "meter", "aria-hidden": "true" }, held, unclearPart, tainted),
      element("span", { class: "muted" }, shown.length > 1 ? `${moment.title}: ${words}` : words)];
  }
  function drawTotals() {
    const all = shown.map((moment) => units(moment, nodes));
    byId("totals").replaceChildren(...all[0].map((unit, index) => element("div", { class: "total" },
      element("b", {}, unit.name), ...shown.flatMap((moment, number) => totalOf(moment, all[number][index])))));
  }
  function drawMap() {
    const map = byId("map");
    map.className = shown.length > 1 ? "panes two" : "panes";
    map.style.setProperty("--card-width", named ? "280px" : "260px");
    // The same nodes in the same order at every moment: filtered by the last.
    const chosen = nodes.filter((node) => FILTERS[filter][1](shown[shown.length - 1], node));
    const groups = new Map();
    for (const node of chosen) {
      const key = node.devices.map((device) => `${device.type.driver} ${device.type.product}`).join("\n");
      groups.set(key, [...(groups.get(key) || []), node]);
    }
    map.replaceChildren(...shown.map((moment) => {
      const pane = element("div", { class: "pane", role: "group", "aria-label": `Nodes, ${moment.title}` });
      if (shown.length > 1) pane.append(element("h3", {}, moment.title));
      for (const members of groups.values()) {
        pane.append(element("h3", {}, kindTitle(members)), element("div", { class: "cards" }, ...members.map((node) => card(moment, node, named))));
      }
      if (!chosen.length) pane.append(element("p", { class: "muted" }, "No node is like that."));
      const first = pane.querySelector(".card");
      if (first) first.tabIndex = 0;
      return pane;
    }));
    mark();
  }
  function drawLegend() {
    const sample = (kind, part, text) => {
      const square = element("span", { class: `device ${kind}` });
      square.style.setProperty("--used", part);
      return element("span", {}, square, text);
    };
    byId("legend").replaceChildren(sample("", "0%", "free"), sample("", "100%", "held"), sample("wide", "50%", "shared, held in part"),
      sample("tainted", "0%", "tainted"), sample("blocked", "0%", "blocked: what it draws on is held"), sample("ghost", "100%", "held, not published"),
      ...(moments.some((moment) => moment.unknown.size) ? [sample("unknown", "0%", "holder unknown")] : []));
  }

  // --- who waits, claims ---

  function nodeLinks(claim) {
    return [...new Set(claim.shares.map((share) => share.device.node))].map((node) => element("a", { href: `#/node=${encodeURIComponent(node.name)}` }, mono(node.title)));
  }
  function deviceText(claim) {
    return claim.shares.map((share) => {
      const what = sharedOut(share.device, share);
      return `${share.device.name}${what ? ` (${what})` : ""}`;
    }).join(", ");
  }
  // Pods that wait for the same reasons stand together.
  function waitingGroups() {
    const groups = new Map();
    for (const [name, claims, reasons] of data.waiting) {
      const key = reasons.join("\n");
      groups.set(key, [...(groups.get(key) || []), { name, claims, reasons }]);
    }
    return [...groups.values()];
  }
  function drawWaiting() {
    const articles = waitingGroups().map((group) => {
      const [{ name, claims, reasons }] = group;
      const rest = group.slice(1);
      return element("article", { class: "wait" },
        element("h3", {}, mono(name), rest.length ? ` and ${rest.length} more` : ""),
        claims.length && !rest.length ? element("p", { class: "muted" }, `waits for ${plural(claims.length, "claim")}: ${claims.join(", ")}`) : "",
        element("ul", {}, ...reasons.map((reason) => element("li", {}, reason))),
        rest.length ? element("details", {}, element("summary", {}, "all of them"), element("p", {}, mono(group.map((each) => each.name).join(", ")))) : "");
    });
    byId("waiting-list").replaceChildren(...(articles.length ? articles : [element("p", { class: "muted" }, "No pod and no claim that was read waits.")]));
  }
  function table(heads, rows, caption) {
    return element("div", { class: "scroll" }, element("table", { "aria-label": caption },
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, ...rows)));
  }
  function between(links) {
    return links.flatMap((link, index) => (index ? [", ", link] : [link]));
  }
  function drawClaims(most = ROWS) {
    const before = moments.length > 1 ? new Map(moments[0].claims.map((claim) => [claim.name, claim])) : null;
    const all = [...latest.claims];
    if (before) all.push(...moments[0].claims.filter((claim) => !latest.claims.some((other) => other.name === claim.name)));
    const rows = all.slice(0, most).map((claim) => {
      const old = before && before.get(claim.name);
      const gone = before && !latest.claims.includes(claim);
      const change = before ? (gone ? "gone" : !old ? "new" : deviceText(old) === deviceText(claim) ? "" : `was: ${deviceText(old) || "not allocated"}`) : "";
      return element("tr", {}, element("td", {}, mono(claim.name)), element("td", {}, mono(claim.pods.join(", "))),
        element("td", {}, ...between(nodeLinks(claim))), element("td", {}, mono(deviceText(claim) || "not allocated"),
          ...claim.cpus.map((each) => element("div", { class: "muted" }, `CPUs ${each.list}`))),
        element("td", { class: "muted" }, [change, ...claim.remarks, claim.created].filter(Boolean).join("; ")));
    });
    const list = byId("claims-list");
    list.replaceChildren(all.length ? table(["claim", "pods", "node", "devices", ""], rows, "Claims") : element("p", { class: "muted" }, "No claim was read."));
    if (all.length > most) {
      const button = element("button", { type: "button", class: "more" }, `Show all ${all.length} claims`);
      button.addEventListener("click", () => drawClaims(all.length));
      list.append(button);
    }
  }

  // --- a node ---

  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

  function lettersOf(node) {
    const names = [...new Set(moments.flatMap((moment) => moment.claims.filter((claim) => isOn(claim, node)).map((claim) => claim.name)))].sort();
    return new Map(names.map((name, index) => [name, { letter: LETTERS[index] || String(index + 1), color: `var(--c${index % 6})` }]));
  }
  function deviceLine(moment, device, letters) {
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    const holding = sharesOf(moment, device).filter((share) => !share.admin);
    for (const share of holding) {
      const { letter, color } = letters.get(share.claim.name);
      const piece = element("i", {}, letter, ` ${last(share.claim.name)}`);
      piece.style.setProperty("--claim", color);
      piece.style.width = `${Math.max(8, 100 * (device.type.shared && device.type.capacity.length ? fraction(share, device) : 1 / holding.length))}%`;
      bar.append(piece);
    }
    if (unknown(moment, device)) bar.append(element("em", {}, "not known"));
    else if (used(moment, device) < 1) bar.append(element("em", {}, moment.blocked.has(device.id) ? "blocked" : "free"));
    const details = [device.type.product, ...amounts(moment, device), ...device.type.taints.map((each) => `tainted: ${each}`)].filter(Boolean).join(" · ");
    return element("div", { class: `line ${classes(moment, device)}`, "data-device": device.id, "data-moment": moments.indexOf(moment) },
      element("span", {}, mono(device.name), details ? element("small", {}, details) : ""), bar);
  }
  function coreCell(cpus, holder, letters, isolated, width, lost) {
    const threads = numbers(cpus);
    const names = threads.map((cpu) => holder.get(cpu));
    const same = names.every((name) => name === names[0]);
    const made = element("span", { class: `core ${same && names[0] ? "held" : ""}`, "data-claims": [...new Set(names.filter(Boolean))].join("\n") },
      threads.map((cpu) => `${isolated.has(cpu) ? "~" : ""}${cpu}`).join(","));
    if (same && names[0]) made.style.setProperty("--claim", letters.get(names[0]).color);
    if (names.some(Boolean)) made.append(element("b", {}, (same ? [names[0]] : names).map((name) => (name ? letters.get(name).letter : "·")).join("")));
    else if (lost) made.append(element("b", {}, "?"));
    made.style.minWidth = `${width + 2}ch`;
    made.dataset.tip = `CPU ${cpus}: ${[...new Set(names.map((name) => name || (lost ? "not known" : "free")))].join(", ")}`;
    return made;
  }
  // In rows of four cores, or of eight where a box has many: people count CPUs by these.
  function coreGrid(cells) {
    const made = element("div", {}, ...cells);
    made.style.gridTemplateColumns = `repeat(${Math.max(1, Math.min(cells.length, cells.length > 16 ? 8 : 4))}, auto)`;
    return made;
  }
  function layoutBoxes(moment, node, letters) {
    const [, , isolatedList, tops] = node.layout;
    const isolated = new Set(numbers(isolatedList));
    const holder = new Map();
    for (const claim of moment.claims) for (const each of claim.cpus) if (each.node === node) for (const cpu of numbers(each.list)) holder.set(cpu, claim.name);
    // Every core has room for its letters, held or not: the layout stays.
    const cores = (box) => [...box[5], ...box[4].flatMap(cores)];
    const widest = Math.max(0, ...tops.flatMap(cores).map((core) => numbers(core).join(",").length + 1 + numbers(core).length));
    const waiting = new Map(boxes(node).map((box) => [box.numa, box.devices]));
    const take = (numa) => {
      const here = numa >= 0 ? waiting.get(numa) || [] : [];
      waiting.delete(numa);
      return here.map((device) => deviceLine(moment, device, letters));
    };
    const draw = ([title, framed, numa, , inner, threads], depth) => {
      if (!framed) return element("div", { class: "cores" }, element("small", {}, title), coreGrid(threads.map((core) => coreCell(core, holder, letters, isolated, widest, moment.unknown.has("CPUs")))));
      return element("div", { class: `frame ${depth ? "" : "outer"}` }, element("div", { class: "caption" }, title),
        element("div", { class: inner.some((each) => each[1]) ? "inside" : "" }, ...inner.map((each) => draw(each, depth + 1))), ...take(numa));
    };
    const made = tops.map((top) => draw(top, 0));
    for (const [numa, rest] of waiting) {
      if (rest.length) made.push(element("div", { class: "frame outer" }, element("div", { class: "caption" }, numa < 0 ? "NUMA node unknown" : `NUMA ${numa}`), ...rest.map((device) => deviceLine(moment, device, letters))));
    }
    return made;
  }
  function plainBoxes(moment, node, letters) {
    return boxes(node).map((box) => element("div", { class: "frame outer" }, element("div", { class: "caption" }, box.numa < 0 ? "NUMA node unknown" : box.title),
      ...box.devices.map((device) => deviceLine(moment, device, letters))));
  }
  function attributes(device) {
    const pairs = [["pool", device.pool], ...device.type.attributes, ...device.own];
    return element("details", {}, element("summary", {}, mono(device.name)), element("dl", {}, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])));
  }
  // How near the whole devices of one driver are to those of another: GPUs and NICs that exchange data belong together.
  function distances(node) {
    const root = (device) => ([...device.type.attributes, ...device.own].find(([name]) => last(name) === "pcieRoot") || [])[1];
    const placed = node.devices.filter((device) => !device.type.shared && (device.type.numa >= 0 || root(device)));
    const [first, ...others] = [...new Set(placed.map((device) => device.type.driver))];
    const rows = placed.filter((device) => device.type.driver === first);
    const columns = placed.filter((device) => others.includes(device.type.driver));
    if (!rows.length || !columns.length || columns.length > 16) return "";
    const words = (one, other) => {
      if (root(one) && root(one) === root(other)) return "same PCIe root";
      return one.type.numa >= 0 && one.type.numa === other.type.numa ? "same NUMA node" : "other NUMA node";
    };
    return element("details", { id: "distances" }, element("summary", {}, "Distances"),
      table(["", ...columns.map((device) => device.name)], rows.map((device) => element("tr", {}, element("td", {}, mono(device.name)),
        ...columns.map((other) => element("td", { class: words(device, other) === "other NUMA node" ? "muted" : "" }, words(device, other))))), "Distances between devices"));
  }
  function drawNode(node) {
    const section = byId("node");
    const letters = lettersOf(node);
    const link = (other, words) => (other ? element("a", { href: `#/node=${encodeURIComponent(other.name)}` }, `${words} ${other.title}`) : "");
    const panes = shown.map((moment) => element("div", { class: "pane", role: "group", "aria-label": `Node, ${moment.title}` },
      shown.length > 1 ? element("h3", {}, moment.title) : "",
      element("div", { class: node.layout ? "inside" : "inside even" }, ...(node.layout ? layoutBoxes : plainBoxes)(moment, node, letters))));
    const cpusOf = (claim) => claim.cpus.filter((each) => each.node === node).map((each) => `CPUs ${each.list}`);
    const key = [...letters].map(([name, { letter, color }]) => {
      const claim = latest.claims.find((each) => each.name === name) || moments[0].claims.find((each) => each.name === name);
      const mark = element("span", { class: "letter" }, letter);
      mark.style.setProperty("--claim", color);
      const pods = claim.pods.filter((pod) => pod !== name);
      return element("li", {}, mark, mono(name), ` ${[pods.length ? `pod ${pods.join(", ")}` : "", deviceText(claim), ...cpusOf(claim)].filter(Boolean).join("; ")}`);
    });
    const rows = node.devices.map((device) => element("tr", {}, element("td", {}, attributes(device)), element("td", {}, device.type.driver),
      element("td", {}, device.type.product), element("td", {}, device.type.numa < 0 ? "" : String(device.type.numa)),
      ...shown.map((moment) => element("td", {}, ...[state(moment, device), ...amounts(moment, device), ...device.type.taints, ...holders(moment, device)].map((text) => element("div", {}, text))))));
    section.replaceChildren(
      element("p", { class: "steps" }, nodes.length > 1 ? element("a", { href: "#/fleet" }, "All nodes") : "", link(nodes[node.index - 1], "←"), link(nodes[node.index + 1], "→")),
      element("h2", { id: "node-title" }, "Node ", mono(node.title)),
      node.layout ? element("p", { class: "muted" }, [node.layout[0], ...node.layout[1]].join("; ")) : "",
      ...node.remarks.map((remark) => element("p", {}, element("span", { class: "badge bad" }, remark))),
      ...shown.filter((moment) => moment.fragmented[node.index]).map((moment) => element("p", {}, element("span", { class: "badge piece" }, "fragmented"),
        ` ${shown.length > 1 ? `${moment.title}: ` : ""}as much of ${moment.fragmented[node.index].join(", of ")} is free as a whole NUMA node has, and no NUMA node is free`)),
      element("div", { class: shown.length > 1 ? "panes two" : "panes", style: "margin-top:10px" }, ...panes),
      element("ul", { class: "key", "aria-label": "Claims on this node" }, ...key),
      distances(node),
      node.devices.length ? table(["device", "driver", "what", "NUMA", ...shown.map((moment) => (shown.length > 1 ? moment.title : "state and holders"))], rows, "Devices of this node") : node.layout ? "" : element("p", { class: "muted" }, "This node publishes no devices."));
    mark();
  }

  // --- search ---

  let index = null;
  function entries() {
    if (index) return index;
    index = [];
    const add = (kind, name, text, hash, some, own) => index.push({ kind, name, text: text.toLowerCase(), hash, devices: some, nodes: own });
    const hash = (node) => (node ? `#/node=${encodeURIComponent(node.name)}` : "");
    const pods = new Map();
    for (const claim of new Map(moments.flatMap((moment) => moment.claims).map((claim) => [claim.name, claim])).values()) {
      const some = claim.shares.map((share) => share.device);
      const own = [...new Set([...some.map((device) => device.node), ...claim.cpus.map((each) => each.node)])];
      add("claim", claim.name, claim.name, hash(own[0]) || "#/claims", some, own);
      for (const pod of claim.pods) pods.set(pod, [...(pods.get(pod) || []), { some, own }]);
    }
    for (const [pod, each] of pods) {
      const own = [...new Set(each.flatMap((part) => part.own))];
      add("pod", pod, pod, hash(own[0]) || "#/waiting", each.flatMap((part) => part.some), own);
    }
    for (const [name] of data.waiting) if (!pods.has(name)) add("waiting", name, name, "#/waiting", [], []);
    for (const node of nodes) add("node", node.title, node.title, hash(node), node.devices, [node]);
    for (const device of devices) {
      const words = [device.name, device.type.driver, device.type.product, ...[...device.type.attributes, ...device.own].map(([, value]) => value)];
      add("device", `${device.node.title}: ${device.name}`, words.join(" "), hash(device.node), [device], [device.node]);
    }
    return index;
  }
  let hits = null;
  function find() {
    const asked = byId("search").value.trim().toLowerCase();
    const results = byId("results");
    if (!asked) {
      hits = null;
      results.hidden = true;
      byId("matches").textContent = "";
      mark();
      return;
    }
    const found = entries().filter((each) => each.text.includes(asked));
    hits = { devices: new Set(), nodes: new Set(), claims: new Set() };
    for (const each of found) {
      each.devices.forEach((device) => hits.devices.add(device.id));
      each.nodes.forEach((node) => hits.nodes.add(node.index));
      if (each.kind === "claim") hits.claims.add(each.name);
      if (each.kind === "pod") moments.forEach((moment) => moment.claims.filter((claim) => claim.pods.includes(each.name)).forEach((claim) => hits.claims.add(claim.name)));
    }
    byId("matches").textContent = plural(found.length, "match").replace("matchs", "matches");
    results.replaceChildren(...found.slice(0, RESULTS).map((each) => element("li", {}, element("a", { href: each.hash },
      element("span", { class: "muted" }, `${each.kind} `), mono(each.name),
      each.kind === "device" || each.kind === "node" ? "" : element("span", { class: "muted" }, ` ${[...new Set(each.nodes.map((node) => node.title))].join(", ") || "on no node"}`)))));
    results.hidden = !found.length;
    mark();
  }
  function mark() {
    document.body.classList.toggle("searching", hits !== null);
    if (hits === null) return;
    for (const made of document.querySelectorAll("[data-device]")) made.classList.toggle("hit", hits.devices.has(Number(made.dataset.device)));
    for (const made of document.querySelectorAll(".card")) made.classList.toggle("near", hits.nodes.has(Number(made.dataset.node)));
    for (const made of document.querySelectorAll(".core")) made.classList.toggle("hit", made.dataset.claims.split("\n").some((name) => hits.claims.has(name)));
  }

  // --- what is shown ---

  function route() {
    // No fragment is the id of an element, to which a browser would scroll.
    const hash = location.hash.slice(2) || (nodes.length === 1 ? `node=${encodeURIComponent(nodes[0].name)}` : "fleet");
    const name = hash.startsWith("node=") ? decodeURIComponent(hash.slice(5)) : null;
    const node = name === null ? null : nodes.find((each) => each.name === name);
    const page = node ? "node" : ["waiting", "claims"].includes(hash) ? hash : "fleet";
    // `#/fleet&changed` is the fleet with a filter, so that a view can be sent to somebody.
    const wanted = page === "fleet" && hash.startsWith("fleet&") ? hash.slice(6) : "";
    if (FILTERS[wanted] && wanted !== filter) {
      byId("filters").querySelector(`[value="${wanted}"]`).checked = true;
      filter = wanted;
      drawMap();
    }
    for (const id of ["fleet", "waiting", "claims", "node"]) byId(id).hidden = id !== page;
    for (const link of byId("nav").children) {
      if (link.hash === `#/${page}` || (page === "node" && link.hash === "#/fleet")) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    byId("results").hidden = true;
    if (node) drawNode(node);
  }
  function drawAll() {
    drawTotals();
    drawMap();
    route();
  }

  const tip = byId("tip");
  function showTip(target) {
    const about = target.closest ? target.closest("[data-device], [data-tip]") : null;
    const text = about && (about.dataset.tip || described(moments[about.dataset.moment], devices[about.dataset.device]));
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const place = about.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(place.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${place.bottom + tip.offsetHeight + 8 < innerHeight ? place.bottom + 6 : Math.max(4, place.top - tip.offsetHeight - 6)}px`;
  }

  function moveTo(card, key) {
    const cards = [...card.closest(".pane").querySelectorAll(".card")];
    const at = cards.indexOf(card);
    const row = (step) => {
      const middle = card.offsetLeft + card.offsetWidth / 2;
      for (let other = at + step; cards[other]; other += step) {
        const each = cards[other];
        if (each.offsetTop !== card.offsetTop && each.offsetLeft <= middle && middle <= each.offsetLeft + each.offsetWidth) return each;
      }
      return null;
    };
    const next = { ArrowRight: () => cards[at + 1], ArrowLeft: () => cards[at - 1], ArrowDown: () => row(1), ArrowUp: () => row(-1), Home: () => cards[0], End: () => cards[cards.length - 1] }[key];
    const other = next && next();
    if (!other) return false;
    card.tabIndex = -1;
    other.tabIndex = 0;
    other.focus();
    return true;
  }

  function listen() {
    addEventListener("hashchange", () => { route(); byId("main").focus({ preventScroll: true }); scrollTo(0, 0); });
    document.addEventListener("pointerover", (event) => showTip(event.target));
    document.addEventListener("focusin", (event) => showTip(event.target));
    document.addEventListener("scroll", () => { tip.hidden = true; }, true);
    byId("search").addEventListener("input", find);
    byId("search").addEventListener("focus", () => { if (hits) byId("results").hidden = !byId("results").children.length; });
    document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".find")) byId("results").hidden = true; });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.matches("input[type=search]");
      if (event.key === "/" && !typing) { event.preventDefault(); byId("search").focus(); }
      else if (event.key === "Escape") {
        if (!tip.hidden) tip.hidden = true;
        if (typing && byId("search").value) { byId("search").value = ""; find(); }
        else if (!byId("node").hidden && nodes.length > 1) location.hash = "#/fleet";
      } else if (typing && event.key === "Enter") {
        const first = byId("results").querySelector("a");
        if (first) first.click();
      } else if (typing && event.key === "ArrowDown") {
        const first = byId("results").querySelector("a");
        if (first && !byId("results").hidden) { event.preventDefault(); first.focus(); }
      } else if (event.target.matches(".card") && moveTo(event.target, event.key)) event.preventDefault();
    });
  }
  function themes() {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const button = byId("theme");
    let chosen = "";
    const apply = () => {
      const theme = chosen || (dark.matches ? "dark" : "light");
      document.documentElement.dataset.theme = theme;
      button.textContent = theme === "dark" ? "Light colors" : "Dark colors";
    };
    button.addEventListener("click", () => { chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; apply(); });
    dark.addEventListener("change", apply);
    apply();
  }
  function start() {
    byId("title").textContent = data.title;
    byId("taken").textContent = data.taken ? `seen ${data.taken}` : "";
    const parts = [["#/fleet", `Fleet: ${plural(nodes.length, "node")}, ${plural(devices.length, "device")}`], ["#/waiting", `Waiting: ${data.waiting.length}`], ["#/claims", `Claims: ${latest.claims.length}`]];
    byId("nav").append(...parts.map(([href, text]) => element("a", { href }, text)));
    if (moments.length > 1) {
      byId("moments").hidden = false;
      const options = [["both", "side by side"], ...moments.map((moment, number) => [String(number), moment.title])];
      choices(byId("moments"), "moment", options, "both", (value) => { shown = value === "both" ? moments : [moments[value]]; drawAll(); });
    }
    choices(byId("filters"), "filter", Object.entries(FILTERS).map(([value, [title, test]]) => [value, `${title} ${nodes.filter((node) => test(latest, node)).length}`]), filter, (value) => { filter = value; history.replaceState(null, "", value === "all" ? "#/fleet" : `#/fleet&${value}`); drawMap(); });
    choices(byId("density"), "density", [["named", "with names"], ["squares", "as squares"]], named ? "named" : "squares", (value) => { named = value === "named"; drawMap(); });
    byId("facts").append(...data.facts.map((fact) => element("li", {}, fact)));
    byId("notes").hidden = !data.notes.length;
    byId("notes").querySelector("ul").append(...data.notes.map((note) => element("li", {}, note)));
    themes();
    drawLegend();
    drawWaiting();
    drawClaims();
    listen();
    drawAll();
  }
  start();
})();
