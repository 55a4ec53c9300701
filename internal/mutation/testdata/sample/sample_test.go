package sample

import "testing"

func TestSample(t *testing.T) {
	if p := choose(red, 1, 2, 3); p != (pair{6, 1}) {
		t.Fatal(p)
	}
	if n, err := (pair{6, 1}).half(0, true); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if p := choose(green, 1); p.a != 2 {
		t.Fatal(p)
	}
	if count(3) != 3 {
		t.Fatal("count")
	}
}
