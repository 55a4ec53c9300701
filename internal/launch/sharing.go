package launch

import (
	"strings"

	"dsmd/internal/runstats/sharing"
)

// followSharing begins to find out why pages travel.
func (r *reports) followSharing() {
	r.sharing = sharing.NewCollector()
	r.taker(r.sharing.Add)
}

// saySharing prints why pages have travelled between the nodes, if that is wanted.
func (s *supervisor) saySharing() {
	if s.started && s.reports.sharing != nil {
		s.notice("%s", strings.Join(s.reports.sharing.Result().Text(), "\n"))
	}
}
