package fabric

import "dsmd/internal/patience" // ends a run in which a test waits for ever, too

func init() { Patience = max(Patience, patience.Or(Patience)) }
