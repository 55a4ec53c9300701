package raytrace

const (
	// picture is divided into blocksAcross by blocksAcross blocks, or one more where that leaves a
	// rest, and a block into bundles of bundleEdge by bundleEdge pixels, as in the original
	// program.
	blocksAcross = 8
	bundleEdge   = 4
	// pixelGranule is the number of pixels of which a block's memory is a multiple: 12 KiB, three
	// pages of 4 KiB.
	pixelGranule = 512
)

// A layout says how the pixels of a square picture lie in memory: block by block, each from the
// beginning of a page on, since a block is mostly computed by one thread; and in a block bundle by
// bundle, since that is what another may have taken. (In a picture that lies row by row, a page of
// 4 KiB holds 170 pixels of a row, and so of many threads.)
type layout struct {
	edge      int // of the picture
	block     int // edge of a block
	across    int // number of blocks along an edge
	bundled   int // number of bundles along a block's edge
	blockSize int // pixels' memory of a block, in pixels
}

func newLayout(edge int) layout {
	block := edge / blocksAcross
	bundled := (block + bundleEdge - 1) / bundleEdge
	size := bundled * bundled * bundleEdge * bundleEdge
	return layout{
		edge: edge, block: block, across: (edge + block - 1) / block, bundled: bundled,
		blockSize: (size + pixelGranule - 1) / pixelGranule * pixelGranule,
	}
}

func (l layout) blocks() int { return l.across * l.across }

// size is the memory of the whole picture, in pixels.
func (l layout) size() int { return l.blocks() * l.blockSize }

// index is where a pixel lies.
func (l layout) index(x, y int) int {
	block := y/l.block*l.across + x/l.block
	x, y = x%l.block, y%l.block
	bundle := y/bundleEdge*l.bundled + x/bundleEdge
	return block*l.blockSize + (bundle*bundleEdge+y%bundleEdge)*bundleEdge + x%bundleEdge
}

// A bundle is the pixels that are one piece of work: the square at (x, y), as far as it lies in its
// block.
type bundle struct{ x, y, right, bottom int32 }

// bundles appends those of a block.
func (l layout) bundles(list []bundle, block int) []bundle {
	left, top := block%l.across*l.block, block/l.across*l.block
	right, bottom := min(left+l.block, l.edge), min(top+l.block, l.edge)
	for y := top; y < bottom; y += bundleEdge {
		for x := left; x < right; x += bundleEdge {
			list = append(list, bundle{int32(x), int32(y), int32(min(x+bundleEdge, right)), int32(min(y+bundleEdge, bottom))})
		}
	}
	return list
}

// encode returns the picture as the original program writes it to a file: its width and height in
// four bytes each, and rows of runs: red, green, blue, and how often the pixel repeats.
func (l layout) encode(pixels []vector) []byte {
	high, low := byte(l.edge>>8), byte(l.edge)
	file := []byte{0, 0, high, low, 0, 0, high, low}
	for y := range l.edge {
		run := pixelBytes(pixels[l.index(0, y)])
		repeats := byte(0)
		for x := 1; x < l.edge; x++ {
			next := pixelBytes(pixels[l.index(x, y)])
			if next == run && repeats < 255 {
				repeats++
				continue
			}
			file = append(file, run[0], run[1], run[2], repeats)
			run, repeats = next, 0
		}
		file = append(file, run[0], run[1], run[2], repeats)
	}
	return file
}

func pixelBytes(p vector) (rgb [3]byte) {
	for k, x := range p {
		rgb[k] = byte(min(max(x, 0), 1) * 255)
	}
	return rgb
}
