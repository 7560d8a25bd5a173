// Brightness and contrast of the images, as a window on their grey values: a linear change of every
// colour channel by an SVG filter. The image file and the decision are not touched.

const STEP = 8;  // per key press; the sliders go from -100 to 100
const LIMIT = 100;
const DRAG_STEP = 0.4;  // per pixel

const limit = (value) => Math.max(-LIMIT, Math.min(LIMIT, Math.round(value)));

// Slope and intercept of the change, for grey values from 0 to 1. Contrast turns around the middle
// grey and doubles every 33 steps; brightness moves by half the range at most.
export function linearChange(brightness, contrast, isInverted) {
  const slope = 2 ** (contrast / 33);
  const intercept = 0.5 - 0.5 * slope + brightness / (2 * LIMIT) * Math.max(slope, 1);
  return isInverted ? [-slope, 1 - intercept] : [slope, intercept];
}

// `box` contains the image, `controls` are the sliders and buttons by name.
export function makeWindow(box, filter, controls, onChange) {
  let brightness = 0;
  let contrast = 0;
  let isInverted = false;
  let dragStart = null;

  function draw() {
    const [slope, intercept] = linearChange(brightness, contrast, isInverted);
    for (const channel of filter.querySelectorAll("feFuncR, feFuncG, feFuncB")) {
      channel.setAttribute("slope", slope);
      channel.setAttribute("intercept", intercept);
    }
    const isChanged = brightness !== 0 || contrast !== 0 || isInverted;
    document.body.classList.toggle("windowed", isChanged);
    controls.brightness.value = brightness;
    controls.contrast.value = contrast;
    controls.brightnessValue.textContent = brightness;
    controls.contrastValue.textContent = contrast;
    controls.invert.setAttribute("aria-pressed", isInverted);
    onChange(isChanged);
  }

  function set(newBrightness, newContrast) {
    brightness = limit(newBrightness);
    contrast = limit(newContrast);
    draw();
  }

  const actions = {
    brighter: () => set(brightness + STEP, contrast),
    darker: () => set(brightness - STEP, contrast),
    more: () => set(brightness, contrast + STEP),
    less: () => set(brightness, contrast - STEP),
    invert() {
      isInverted = !isInverted;
      draw();
    },
    reset() {
      isInverted = false;
      set(0, 0);
    },
  };

  controls.brightness.addEventListener("input", () =>
    set(Number(controls.brightness.value), contrast));
  controls.contrast.addEventListener("input", () =>
    set(brightness, Number(controls.contrast.value)));
  controls.invert.addEventListener("click", actions.invert);
  controls.reset.addEventListener("click", actions.reset);
  box.addEventListener("contextmenu", (event) => event.preventDefault());
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 2) return;
    dragStart = { x: event.clientX, y: event.clientY, brightness, contrast };
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointermove", (event) => {
    if (!dragStart) return;
    const right = (event.clientX - dragStart.x) * DRAG_STEP;
    const up = (dragStart.y - event.clientY) * DRAG_STEP;
    set(dragStart.brightness + up, dragStart.contrast + right);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    box.addEventListener(name, () => { dragStart = null; });
  }
  draw();
  return actions;
}
