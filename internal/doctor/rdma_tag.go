//go:build rdma && cgo

package doctor

// rdmaBuilt reports whether this build can speak RDMA.
const rdmaBuilt = true
