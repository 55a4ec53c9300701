// Package dashboard shows what a job waits for while it runs: a page in a browser with the waits of
// each rank over time, a heat map of each allocation, who takes pages from whom, and what costs
// most. A Model takes the pieces that ranks send, in bounded memory however long the job is. Its
// State is JSON, which a Server shows and which can be kept in a file for later. The page is in the
// binary, with the library that draws its chart.
package dashboard
