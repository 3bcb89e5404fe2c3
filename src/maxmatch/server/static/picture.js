// The user's own picture to search with: dropped, pasted or picked.

const LARGE = 2e6;
const SIDE = 1024;

/** A large photo made smaller here, so that little is sent. What the browser cannot read is sent as it is. */
async function shrunk(file) {
  if (file.size < LARGE) return file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    return (await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9))) ?? file;
  } catch {
    return file;
  }
}

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

/** Calls take(file) with each picture given; refuse(message) if a file is not a picture. */
export function watchPictures({ veil, button, input, take, refuse }) {
  const given = async (files) => {
    if (!files.length) return;
    const picture = files.find((file) => file.type.startsWith("image/"));
    if (picture) take(await shrunk(picture));
    else refuse("That file is not a picture. Drop a JPEG, PNG or WebP file.");
  };
  let inside = 0;
  addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    inside += 1;
    veil.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (hasFiles(event)) inside -= 1;
    if (inside <= 0) veil.hidden = true;
  });
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    inside = 0;
    veil.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    given([...event.dataTransfer.files]);
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    given(files);
  });
  button.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    given([...input.files]);
    input.value = "";
  });
}
