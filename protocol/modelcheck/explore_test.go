package modelcheck

import (
	"testing"
	"time"

	"dsmd/protocol/model"
)

func TestTry(t *testing.T) {
	for _, fused := range []bool{true, false} {
		for _, dup := range []uint8{0, 1} {
			for _, strays := range []bool{false, true} {
				c := &model.Config{Nodes: 2, Pages: 8, HomeStripe: 1, Hold: 10, MaxHold: 100, Fused: fused, Duplicates: dup, Strays: strays}
				c.Threads = []model.ThreadSpec{
					{Node: 0, Client: 1, Program: model.MustParseProgram("write 0; read 1")},
					{Node: 1, Client: 1, Program: model.MustParseProgram("write 1; write 0")},
				}
				s := time.Now()
				r := Explore(c, 0)
				t.Logf("fused %v dup %v strays %v: %v %+v", fused, dup, strays, time.Since(s), *r)
				if r.Finding != nil {
					text, v, err := r.Finding.Scenario.Run()
					t.Fatalf("%v\n%v\n%v %v", r.Finding.Violation, text, v, err)
				}
			}
		}
	}
}
