package doctor

import (
	"errors"
	"strings"
	"testing"

	"dsmd/internal/netio"
)

func TestPriority(t *testing.T) {
	denied := errors.New("denied")
	for _, test := range []struct {
		nice, realTime error
		verdict        Verdict
		detail         string
	}{
		{nil, nil, OK, "nice and realtime are allowed"},
		{nil, denied, OK, "realtime is not: denied"},
		{denied, nil, Missing, "nice is not: denied"},
		{denied, denied, Missing, "denied"},
	} {
		f := priority(func(p netio.Priority) error {
			return map[netio.Priority]error{netio.Nice: test.nice, netio.RealTime: test.realTime}[p]
		})
		all := test.nice == nil && test.realTime == nil
		if f.Required || f.Verdict != test.verdict || !strings.Contains(f.Detail, test.detail) || all != (f.Remedy == "") || all != (f.Consequence == "") {
			t.Errorf("nice %v, realtime %v: %+v", test.nice, test.realTime, f)
		}
	}
}
