// Package netns lets a test run several machines on this one: each with its own network interface,
// host name, file system, processes and init, connected by a switch, as if they were bare machines
// that have just been installed.
//
//	func TestThree(t *testing.T) {
//		net := netns.Start(t, "ann", "bob", "eve")
//		ann, bob := net.Machines[0], net.Machines[1]
//		bob.WriteFile(t, "/etc/greeting", "hello\n", 0o644) // on bob alone
//		ann.Run(t, "ping -c 1 bob")                          // fails the test if it fails
//		net.Disconnect(t, bob)
//		net.Connect(t, bob)
//		net.Filter(t).Sever(t, ann, bob) // bob hears nothing of ann, and ann hears bob
//		bob.PowerOff()
//	}
//
// # What a machine is
//
// A process, the machine's init, in namespaces of its own: network, mounts, processes, host name,
// and System V IPC. Its file system is a copy on write of this machine's (an overlay whose upper
// layer is in memory), so that a test may install into /usr/local/bin or /etc and follow
// instructions for real machines word for word; nobody else sees it. Machines have addresses
// 10.77.0.1, 10.77.0.2, … on their eth0 and know each other by name (/etc/hosts). The kernel, its
// clock and its memory are shared, and so are the files that existed here when the machine was
// started: a test makes binaries before that, or in the directory that all share (Network.Shared).
//
// The switch is a bridge in a network namespace that belongs to nobody else. Nothing is made in the
// namespaces of the test itself.
//
// # Ends
//
// A machine ends with its init, and all of its processes, mounts and links with it: at the end of
// the test, when it is switched off (PowerOff), and when the test binary dies, in whatever way. So
// nothing can be left behind.
//
// # What it needs
//
// Root, and the programs ip (iproute2) and nsenter, mount and pivot_root (util-linux); for ServeSSH
// also sshd (openssh-server), and for Filter nft (nftables). Where something is missing the test is
// skipped, unless the environment variable DSMD_REQUIRE names netns: then it fails.
package netns
