package matmul

// panelRows is how many rows of B are applied to all rows of C before the next ones are: at the
// default size 64 rows are 512 KiB, which stay in a processor's second-level cache meanwhile.
const panelRows = 64

// matrices are A, B and C, n by n, row by row.
type matrices struct {
	n       int
	a, b, c []float64
}

// fill sets rows lo to hi-1 of the input and clears those of C. The values have periods that no
// block or page size divides, so that a row or page in the wrong place changes the result.
func (m matrices) fill(lo, hi int) {
	for i := lo; i < hi; i++ {
		for j := range m.n {
			at := i*m.n + j
			m.a[at] = float64((i*61+j*7)%997)/997 - 0.5
			m.b[at] = float64((i*13+j*89)%1013)/1013 - 0.5
			m.c[at] = 0
		}
	}
}

// multiply adds A's columns klo to khi-1 times B's rows of those numbers to C's rows lo to hi-1.
// Calling it for the panels in order gives every element of C its terms in groups of four, in order
// of k.
func (m matrices) multiply(lo, hi, klo, khi int) {
	n := m.n
	for i := lo; i < hi; i++ {
		a, c := m.a[i*n:(i+1)*n], m.c[i*n:(i+1)*n]
		k := klo
		for ; k+4 <= khi; k += 4 {
			addRows4(c, a[k:k+4], m.b[k*n:(k+4)*n])
		}
		for ; k < khi; k++ {
			addRow(c, a[k], m.b[k*n:(k+1)*n])
		}
	}
}

// addRows4 adds a[0]·b0 + a[1]·b1 + a[2]·b2 + a[3]·b3 to c, where b0 to b3 are the rows of b. The
// conversions forbid the compiler to fuse a multiplication and an addition on processors that can,
// which would round differently from one to another.
func addRows4(c, a, b []float64) {
	a0, a1, a2, a3 := a[0], a[1], a[2], a[3]
	n := len(c)
	b0, b1, b2, b3 := b[:n], b[n:2*n], b[2*n:3*n], b[3*n:4*n]
	for j := range c {
		c[j] += (float64(a0*b0[j]) + float64(a1*b1[j])) + (float64(a2*b2[j]) + float64(a3*b3[j]))
	}
}

func addRow(c []float64, a float64, b []float64) {
	b = b[:len(c)]
	for j := range c {
		c[j] += float64(a * b[j])
	}
}
