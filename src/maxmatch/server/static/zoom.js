// A picture looked at closely: wheel, pinch, double tap and drag; and swiped to the next one.

const MOST = 8;
const SWIPE = 60;
const TAP = 300;

const apart = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);

export class Zoom {
  /** frame: what the picture is shown in; pane: what is moved in it. swiped(by): to the next or previous one. changed(scale). */
  constructor(frame, pane, { swiped, changed }) {
    Object.assign(this, { frame, pane, swiped, changed, scale: 1, x: 0, y: 0, enabled: true });
    this.pointers = new Map();
    frame.addEventListener("pointerdown", (event) => this.down(event));
    frame.addEventListener("pointermove", (event) => this.moved(event));
    for (const name of ["pointerup", "pointercancel"]) frame.addEventListener(name, (event) => this.up(event, name === "pointerup"));
    frame.addEventListener("dblclick", (event) => this.kind === "mouse" && !event.target.closest("button") && this.toggle(event));
    frame.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  reset() {
    [this.scale, this.x, this.y] = [1, 0, 0];
    this.apply();
  }

  /** Zoom by a factor, so that what lies under a point of the frame stays there. */
  by(factor, at = null) {
    if (!this.enabled) return;
    const next = Math.min(MOST, Math.max(1, this.scale * factor));
    const box = this.frame.getBoundingClientRect();
    const [left, top] = at ? [at.clientX - box.left - box.width / 2, at.clientY - box.top - box.height / 2] : [0, 0];
    const ratio = next / this.scale;
    this.x = left - (left - this.x) * ratio;
    this.y = top - (top - this.y) * ratio;
    this.scale = next;
    this.apply();
  }

  toggle(at) {
    if (!this.enabled) return;
    if (this.scale > 1.01) this.reset();
    else this.by(2.5, at);
  }

  apply(slide = 0) {
    const box = this.frame.getBoundingClientRect();
    const most = (size) => Math.max(0, (size * this.scale - size) / 2);
    this.x = Math.min(most(box.width), Math.max(-most(box.width), this.x));
    this.y = Math.min(most(box.height), Math.max(-most(box.height), this.y));
    this.pane.style.transform = this.scale > 1 || slide ? `translate(${this.x + slide}px, ${this.y}px) scale(${this.scale})` : "";
    this.frame.classList.toggle("zoomed", this.scale > 1);
    this.changed(this.scale);
  }

  wheel(event) {
    if (!this.enabled || (matchMedia("(max-width: 860px)").matches && !event.ctrlKey)) return;
    event.preventDefault();
    this.by(Math.exp(-event.deltaY / (event.deltaMode ? 12 : 400)), event);
  }

  down(event) {
    if (!this.enabled || event.button || event.target.closest("button")) return;
    this.kind = event.pointerType;
    this.pointers.set(event.pointerId, event);
    this.frame.setPointerCapture(event.pointerId);
    this.began = event;
    this.slid = 0;
  }

  moved(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const other = [...this.pointers.values()].find((one) => one.pointerId !== event.pointerId);
    this.pointers.set(event.pointerId, event);
    if (other) {
      const middle = { clientX: (event.clientX + other.clientX) / 2, clientY: (event.clientY + other.clientY) / 2 };
      this.by(apart(event, other) / (apart(before, other) || 1), middle);
      this.began = null;
    } else if (this.scale > 1) {
      this.x += event.clientX - before.clientX;
      this.y += event.clientY - before.clientY;
      this.apply();
    } else if (this.began && event.pointerType !== "mouse") {
      this.slid = event.clientX - this.began.clientX;
      this.apply(this.slid);
    }
  }

  up(event, lifted) {
    if (!this.pointers.delete(event.pointerId) || this.pointers.size) return;
    const [slid, began] = [this.slid, this.began];
    this.slid = 0;
    if (this.scale === 1) this.apply();
    if (!lifted || !began || event.pointerType === "mouse") return;
    if (this.scale === 1 && Math.abs(slid) > SWIPE) return this.swiped(slid < 0 ? 1 : -1);
    if (apart(event, began) > 12) return;
    const twice = this.tapped && event.timeStamp - this.tapped.timeStamp < TAP && apart(event, this.tapped) < 40;
    this.tapped = twice ? null : event;
    if (twice) this.toggle(event);
  }
}
