// The large image, alone or with another one beside it: zoom around a point, move, fit. Both images
// are always at the same zoom and the same place. The browser draws them; this code only keeps a
// scale and an offset, those of the first image.

const MAX_SCALE = 40;
const ZOOM_STEP = 1.25;
const PAN_STEP = 60;  // pixels
const MAX_FIT_SCALE = 16;  // a small image that is enlarged further is harder to recognise

// An image smaller than the box is centred, a larger one always fills the box.
function limitOffset(offset, imageSize, boxSize) {
  if (imageSize <= boxSize) return (boxSize - imageSize) / 2;
  return Math.min(0, Math.max(boxSize - imageSize, offset));
}

// `onZoom(scale, smooth)` is called after every change.
export function makeViewer(box, onZoom) {
  let panes = [];  // of one or two images; nothing else is drawn without any
  let scale = 1;
  let x = 0;
  let y = 0;
  let isFitted = true;
  let smooth = true;
  const pointers = new Map();

  function makePane(image, caption) {
    const node = document.createElement("div");
    node.className = "pane";
    const text = document.createElement("p");
    text.textContent = caption;
    node.append(image, text);
    return { node, image };
  }

  function setPanes(next) {
    panes = next;
    box.replaceChildren(...panes.map((pane) => pane.node));
    box.classList.toggle("compares", panes.length > 1);
    fit();
  }

  function fitScale({ node, image } = panes[0]) {
    const horizontal = node.clientWidth / image.naturalWidth;
    const vertical = node.clientHeight / image.naturalHeight;
    return Math.min(horizontal, vertical, MAX_FIT_SCALE) || 1;
  }

  function draw() {
    if (!panes.length) return;
    const { node, image } = panes[0];
    const width = image.naturalWidth * scale;
    const height = image.naturalHeight * scale;
    x = limitOffset(x, width, node.clientWidth);
    y = limitOffset(y, height, node.clientHeight);
    // the place in the image that is at the centre of its pane, from 0 to 1
    const centre = [(node.clientWidth / 2 - x) / width, (node.clientHeight / 2 - y) / height];
    for (const pane of panes) place(pane, scale / fitScale(), centre);
    const isLarger = width > node.clientWidth + 1 || height > node.clientHeight + 1;
    box.classList.toggle("zoomed", isLarger);
    box.classList.toggle("pixels", !smooth);
    onZoom(scale, smooth);
  }

  function place(pane, zoom, [across, down]) {
    const { node, image } = pane;
    const ownScale = zoom * fitScale(pane);
    const width = image.naturalWidth * ownScale;
    const height = image.naturalHeight * ownScale;
    const left = limitOffset(node.clientWidth / 2 - across * width, width, node.clientWidth);
    const top = limitOffset(node.clientHeight / 2 - down * height, height, node.clientHeight);
    image.style.transform = `translate(${left}px, ${top}px) scale(${ownScale})`;
  }

  function zoomTo(next, cx, cy) {
    if (!panes.length) return;
    const { clientWidth, clientHeight } = panes[0].node;
    cx ??= clientWidth / 2;
    cy ??= clientHeight / 2;
    const low = Math.min(fitScale(), 1);
    next = Math.min(Math.max(next, low), Math.max(MAX_SCALE, fitScale()));
    x = cx - (cx - x) * next / scale;
    y = cy - (cy - y) * next / scale;
    scale = next;
    isFitted = Math.abs(scale - fitScale()) < 1e-6;
    draw();
  }

  function fit() {
    if (!panes.length) return;
    scale = fitScale();
    isFitted = true;
    draw();
  }

  function pointOf(event) {  // within the pane under the pointer
    const edges = panes.map(({ node }) => node.getBoundingClientRect());
    const isInside = (edge) => event.clientX >= edge.left && event.clientX < edge.right
      && event.clientY >= edge.top && event.clientY < edge.bottom;
    const edge = edges.find(isInside) ?? edges[0] ?? box.getBoundingClientRect();
    return [event.clientX - edge.left, event.clientY - edge.top];
  }

  box.addEventListener("wheel", (event) => {
    event.preventDefault();
    const distance = Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 100);
    zoomTo(scale * Math.exp(-distance / 400), ...pointOf(event));
  }, { passive: false });
  box.addEventListener("dblclick", (event) => {
    if (isFitted) zoomTo(scale * 2.5, ...pointOf(event));
    else fit();
  });
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointermove", (event) => {
    const oldPoint = pointers.get(event.pointerId);
    if (!oldPoint) return;
    const point = [event.clientX, event.clientY];
    const secondPoint = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pointers.set(event.pointerId, point);
    if (secondPoint) {  // two fingers
      const distance = (p) => Math.hypot(p[0] - secondPoint[0], p[1] - secondPoint[1]) || 1;
      const middle = { clientX: (point[0] + secondPoint[0]) / 2,
        clientY: (point[1] + secondPoint[1]) / 2 };
      zoomTo(scale * distance(point) / distance(oldPoint), ...pointOf(middle));
    } else {
      x += point[0] - oldPoint[0];
      y += point[1] - oldPoint[1];
      isFitted = false;
      draw();
    }
  });
  for (const name of ["pointerup", "pointercancel"]) {
    box.addEventListener(name, (event) => pointers.delete(event.pointerId));
  }
  new ResizeObserver(() => (isFitted ? fit() : draw())).observe(box);

  return {
    // an element that is already loaded, so that nothing flickers
    show: (image, caption = "") => setPanes([makePane(image, caption)]),
    // another image on the right of the first one
    compare: (image, caption) => setPanes([panes[0], makePane(image, caption)]),
    alone: () => panes.length > 1 && setPanes([panes[0]]),
    empty(text) {
      panes = [];
      const message = document.createElement("p");
      message.textContent = text;
      box.replaceChildren(message);
    },
    in: () => zoomTo(scale * ZOOM_STEP),
    out: () => zoomTo(scale / ZOOM_STEP),
    fit,
    original: () => zoomTo(1 / (window.devicePixelRatio || 1)),
    smooth() {
      smooth = !smooth;
      draw();
    },
    pan(dx, dy) {
      x -= dx * PAN_STEP;
      y -= dy * PAN_STEP;
      isFitted = false;
      draw();
    },
    get isZoomed() { return box.classList.contains("zoomed"); },
  };
}
