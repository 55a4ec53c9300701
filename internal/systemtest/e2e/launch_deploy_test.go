package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"dsmd/internal/systemtest/testcluster"
)

func deployFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../docs/deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSystemdUnit: systemd accepts the unit, and thinks well of how it is confined.
func TestSystemdUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip(err)
	}
	unit := filepath.Join(t.TempDir(), "dsmd.service")
	// Whether the program exists is verified too.
	text := strings.ReplaceAll(deployFile(t, "dsmd.service"), "/usr/local/bin/dsmd", testcluster.Dsmd(t))
	if err := os.WriteFile(unit, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=20", unit).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze security finds the unit exposed by more than 2.0: %v\n%s", err, out)
	}
}

// TestExampleConfiguration: the daemon takes the example, and finds everything in it.
func TestExampleConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dsmd.yaml")
	if err := os.WriteFile(file, []byte(deployFile(t, "dsmd.yaml")), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(testcluster.Dsmd(t), "config", "check", "--config", file).CombinedOutput()
	if err != nil {
		t.Errorf("dsmd config check: %v\n%s", err, out)
	}
}

// TestKubernetesManifests: every field exists, and what several objects have to agree on agrees.
func TestKubernetesManifests(t *testing.T) {
	documents := strings.Split(deployFile(t, "kubernetes.yaml"), "\n---\n")
	if len(documents) != 3 {
		t.Fatalf("%d objects, want a service, a network policy and a stateful set", len(documents))
	}
	var service corev1.Service
	var policy networkingv1.NetworkPolicy
	var set appsv1.StatefulSet
	for i, object := range []any{&service, &policy, &set} {
		if err := yaml.UnmarshalStrict([]byte(documents[i]), object); err != nil {
			t.Fatalf("object %d: %v", i, err)
		}
	}
	pod := set.Spec.Template
	if service.Spec.ClusterIP != corev1.ClusterIPNone || !service.Spec.PublishNotReadyAddresses {
		t.Error("the service's name has to stand for all pods, ready or not")
	}
	for what, selector := range map[string]map[string]string{
		"service": service.Spec.Selector, "stateful set": set.Spec.Selector.MatchLabels, "network policy": policy.Spec.PodSelector.MatchLabels,
	} {
		for key, value := range selector {
			if pod.Labels[key] != value {
				t.Errorf("the %s selects %s=%s, and the pods have %v", what, key, value, pod.Labels)
			}
		}
	}
	if set.Spec.ServiceName != service.Name || set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
		t.Errorf("the stateful set's service is %q, and its pods start %s", set.Spec.ServiceName, set.Spec.PodManagementPolicy)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("container %s mounts %s, which is no volume", c.Name, m.Name)
			}
		}
	}
	checkDaemonContainer(t, &set, pod.Spec.Containers[0], service.Name)
}

// checkDaemonContainer has dsmd itself look at the settings, with what Kubernetes puts in.
func checkDaemonContainer(t *testing.T, set *appsv1.StatefulSet, c corev1.Container, service string) {
	t.Helper()
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil {
			switch path := e.ValueFrom.FieldRef.FieldPath; path {
			case "metadata.labels['apps.kubernetes.io/pod-index']":
				env[e.Name] = "2"
			case "status.podIP":
				env[e.Name] = "10.1.2.3"
			default:
				t.Errorf("%s comes from %s", e.Name, path)
			}
		}
	}
	expand := func(s string) string {
		return regexp.MustCompile(`\$\((\w+)\)`).ReplaceAllStringFunc(s, func(v string) string { return env[v[2:len(v)-1]] })
	}
	for name, value := range env {
		env[name] = expand(value)
	}
	if env["DSMD_NODES"] != strconv.Itoa(int(*set.Spec.Replicas)) || env["DSMD_JOIN"] != service {
		t.Errorf("%d replicas of service %s, and the daemon is told %s nodes at %s", *set.Spec.Replicas, service, env["DSMD_NODES"], env["DSMD_JOIN"])
	}
	mounted := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounted[m.MountPath] = m.SubPath + expand(m.SubPathExpr)
	}
	for name, want := range map[string]string{"DSMD_TLS_CA": "ca.pem", "DSMD_TLS_CERT": "node-2.pem", "DSMD_TLS_KEY": "node-2-key.pem", "DSMD_GOSSIP_KEY_FILE": "gossip.key"} {
		if mounted[env[name]] != want {
			t.Errorf("%s is %s, where %q is mounted; want %s", name, env[name], mounted[env[name]], want)
		}
	}
	cmd := exec.Command(testcluster.Dsmd(t), "config", "check")
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if out, err := cmd.CombinedOutput(); err != nil || bytes.Contains(out, []byte("unknown")) {
		t.Errorf("dsmd config check: %v\n%s", err, out)
	}
}
