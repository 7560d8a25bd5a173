// The large image: zoom around a point, move, fit. The browser draws it; this code only keeps a
// scale and an offset.

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
  let image = null;
  let scale = 1;
  let x = 0;
  let y = 0;
  let isFitted = true;
  let smooth = true;
  const pointers = new Map();

  function fitScale() {
    const horizontal = box.clientWidth / image.naturalWidth;
    const vertical = box.clientHeight / image.naturalHeight;
    return Math.min(horizontal, vertical, MAX_FIT_SCALE) || 1;
  }

  function draw() {
    if (!image) return;
    const width = image.naturalWidth * scale;
    const height = image.naturalHeight * scale;
    x = limitOffset(x, width, box.clientWidth);
    y = limitOffset(y, height, box.clientHeight);
    image.style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
    const isLarger = width > box.clientWidth + 1 || height > box.clientHeight + 1;
    box.classList.toggle("zoomed", isLarger);
    box.classList.toggle("pixels", !smooth);
    onZoom(scale, smooth);
  }

  function zoomTo(next, cx = box.clientWidth / 2, cy = box.clientHeight / 2) {
    if (!image) return;
    const low = Math.min(fitScale(), 1);
    next = Math.min(Math.max(next, low), Math.max(MAX_SCALE, fitScale()));
    x = cx - (cx - x) * next / scale;
    y = cy - (cy - y) * next / scale;
    scale = next;
    isFitted = Math.abs(scale - fitScale()) < 1e-6;
    draw();
  }

  function fit() {
    if (!image) return;
    scale = fitScale();
    isFitted = true;
    draw();
  }

  function pointOf(event) {
    const edge = box.getBoundingClientRect();
    return [event.clientX - edge.left - box.clientLeft, event.clientY - edge.top - box.clientTop];
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
    pointers.set(event.pointerId, pointOf(event));
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointermove", (event) => {
    const oldPoint = pointers.get(event.pointerId);
    if (!oldPoint) return;
    const point = pointOf(event);
    const secondPoint = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pointers.set(event.pointerId, point);
    if (secondPoint) {  // two fingers
      const distance = (p) => Math.hypot(p[0] - secondPoint[0], p[1] - secondPoint[1]) || 1;
      const centre = [(point[0] + secondPoint[0]) / 2, (point[1] + secondPoint[1]) / 2];
      zoomTo(scale * distance(point) / distance(oldPoint), ...centre);
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
    show(next) {  // an element that is already loaded, so that nothing flickers
      image = next;
      box.replaceChildren(image);
      fit();
    },
    empty(text) {
      image = null;
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
