package callsite

import _ "dsmd/internal/patience" // ends a run in which a test waits for ever
