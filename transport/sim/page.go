package sim

// poison overwrites memory that its user has given up.
const poison = 0xdb

func overwrite(b []byte) {
	if len(b) == 0 {
		return
	}
	b[0] = poison
	for filled := 1; filled < len(b); filled *= 2 {
		copy(b[filled:], b[:filled])
	}
}
