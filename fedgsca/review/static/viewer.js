// The large image: zoom around a point, move, fit. It is drawn by the browser; this only keeps a scale and an offset.

const LARGEST = 40, STEP = 1.25, MOVE = 60;
const ENLARGE = 16;  // a thumbnail blown up further is harder to recognise, not easier

export function makeViewer(box, zoomed) {
  let image = null, scale = 1, x = 0, y = 0, fitted = true, smooth = true;
  const pointers = new Map();

  const fitScale = () => Math.min(box.clientWidth / image.naturalWidth, box.clientHeight / image.naturalHeight, ENLARGE) || 1;

  function draw() {
    if (!image) return;
    const w = image.naturalWidth * scale, h = image.naturalHeight * scale;
    // an image smaller than the box is centred, a larger one never leaves the box empty
    x = w <= box.clientWidth ? (box.clientWidth - w) / 2 : Math.min(0, Math.max(box.clientWidth - w, x));
    y = h <= box.clientHeight ? (box.clientHeight - h) / 2 : Math.min(0, Math.max(box.clientHeight - h, y));
    image.style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
    box.classList.toggle("zoomed", w > box.clientWidth + 1 || h > box.clientHeight + 1);
    box.classList.toggle("pixels", !smooth);
    zoomed(scale, smooth);
  }

  function zoomTo(next, cx = box.clientWidth / 2, cy = box.clientHeight / 2) {
    if (!image) return;
    const low = Math.min(fitScale(), 1);
    next = Math.min(Math.max(next, low), Math.max(LARGEST, fitScale()));
    x = cx - (cx - x) * next / scale;
    y = cy - (cy - y) * next / scale;
    scale = next;
    fitted = Math.abs(scale - fitScale()) < 1e-6;
    draw();
  }

  function fit() {
    if (!image) return;
    scale = fitScale();
    fitted = true;
    draw();
  }

  function at(event) {
    const edge = box.getBoundingClientRect();
    return [event.clientX - edge.left - box.clientLeft, event.clientY - edge.top - box.clientTop];
  }

  box.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoomTo(scale * Math.exp(-Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 100) / 400), ...at(event));
  }, { passive: false });
  box.addEventListener("dblclick", (event) => (fitted ? zoomTo(scale * 2.5, ...at(event)) : fit()));
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pointers.set(event.pointerId, at(event));
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId), now = at(event);
    if (!before) return;
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pointers.set(event.pointerId, now);
    if (other) {
      const distance = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
      zoomTo(scale * distance(now) / distance(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else {
      x += now[0] - before[0];
      y += now[1] - before[1];
      fitted = false;
      draw();
    }
  });
  for (const end of ["pointerup", "pointercancel"]) box.addEventListener(end, (event) => pointers.delete(event.pointerId));
  new ResizeObserver(() => (fitted ? fit() : draw())).observe(box);

  return {
    show(next) {  // an element that is loaded already: nothing flickers
      image = next;
      box.replaceChildren(image);
      fit();
    },
    empty(text) {
      image = null;
      const said = document.createElement("p");
      said.textContent = text;
      box.replaceChildren(said);
    },
    in: () => zoomTo(scale * STEP),
    out: () => zoomTo(scale / STEP),
    fit,
    original: () => zoomTo(1 / (window.devicePixelRatio || 1)),
    smooth() { smooth = !smooth; draw(); },
    pan(dx, dy) { x -= dx * MOVE; y -= dy * MOVE; fitted = false; draw(); },
    get isZoomed() { return box.classList.contains("zoomed"); },
  };
}
