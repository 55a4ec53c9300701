//go:build rdma && cgo

package doctor

// rdmaBuilt says whether this build can speak RDMA.
const rdmaBuilt = true
