// Package certs makes and checks the certificates by which the daemons of a cluster know each
// other.
//
// A cluster has an authority of its own: a self-signed certificate and its key, made by
// NewAuthority. Authority.Issue signs the certificate of a node. Whoever holds a certificate that
// the authority has signed is a member of the cluster. An Identity in the certificate says which
// node it may be, a URI like
//
//	dsmd:///CLUSTER/node/3     node 3 of the cluster, and no other
//	dsmd:///CLUSTER/node       any node of the cluster
//
// Load turns the files of a node into a TLS configuration for both directions of a connection, and
// refuses files that will not work: those that do not belong together, those that are out of date,
// and keys that other users can read. VerifyNode binds the peer's certificate to the node that the
// peer says it is. Host names and addresses in a certificate are for other tools: a daemon asks who
// its peer is, not where.
//
// Keys are ECDSA on P-256, certificates X.509, files PEM with mode 0600. Nothing here needs another
// program, and nothing that exists is overwritten unless asked for. The package also makes and
// reads the key file of gossip, and the secret by which nodes without certificates know each other.
//
// All functions may be called from any goroutine.
package certs
