package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"dsmd/internal/certs"
	"dsmd/internal/settings"
)

const day = 24 * time.Hour

func newCert() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "Make the certificates and keys of a cluster",
		Long: `Makes what the daemons of a cluster know each other by: an authority of the cluster, made once;
a certificate for each node, signed by it; and a key for gossip, the same on all nodes. Nodes that all
run on one machine need less: a secret, the same for all (dsmd serve makes one by itself). Whoever has a
certificate that the authority signed, and its key, is a member of the cluster and may read and write
its memory. So keep the authority's key off the nodes, and copy the other files by a way that
others cannot look into (scp, a secret of Kubernetes).

All files are PEM, for their owner only. None is overwritten without --force.`,
		Example: `  dsmd cert ca --out authority --cluster blue
  dsmd cert node --ca authority --out node-0 --id 0
  dsmd cert gossip-key --out node-0/gossip.key
  dsmd cert show node-0/node-0.pem`,
	}
	return family(cmd, newCertAuthority(), newCertNode(), newCertGossipKey(), newCertSecret(), newCertShow())
}

// certFlags are those that several of the commands have.
type certFlags struct {
	out   string
	days  int
	force bool
}

func (f *certFlags) register(cmd *cobra.Command, what string, days int) {
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&f.out, "out", "", what)
	if days > 0 {
		cmd.Flags().IntVar(&f.days, "days", days, "how long it is valid, from now on, in `DAYS`")
	}
	cmd.Flags().BoolVar(&f.force, "force", false, "replace files that exist")
}

// valid checks what the flags say and returns for how long a certificate is to be valid.
func (f *certFlags) valid() (time.Duration, error) {
	if f.out == "" {
		return 0, errors.New("--out is missing: say where to write to")
	}
	if most := int(certs.MaxValidity / day); f.days < 1 || f.days > most {
		return 0, fmt.Errorf("--days %d: 1 to %d are possible", f.days, most)
	}
	return time.Duration(f.days) * day, nil
}

func newCertAuthority() *cobra.Command {
	var flags certFlags
	var cluster string
	cmd := &cobra.Command{
		Use:     "ca",
		Short:   "Make the authority of a cluster",
		Example: "  dsmd cert ca --out authority --cluster blue",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			valid, err := flags.valid()
			if err == nil && cluster == "" {
				err = errors.New("--cluster is missing: say the name that the daemons are given")
			}
			if err == nil {
				if err = settings.CheckCluster(cluster); err != nil {
					err = fmt.Errorf("--cluster: %w", err)
				}
			}
			if err != nil {
				return usageError(cmd, err)
			}
			if _, err := certs.NewAuthority(flags.out, cluster, valid, flags.force); err != nil {
				return err
			}
			return written(cmd, flags.out, certs.AuthorityFile+" is for every node", certs.AuthorityKeyFile+" signs certificates of nodes: keep it where no daemon runs")
		},
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "`NAME` of the cluster, as in \"dsmd serve --cluster\"")
	flags.register(cmd, "write to this `DIR`", int(certs.AuthorityValidity/day))
	return cmd
}

func newCertNode() *cobra.Command {
	var flags certFlags
	var authority string
	node := certs.Node{}
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Make the certificate of a node",
		Long: `Makes the certificate of a node, signed by the authority of its cluster. With --id it is good for
that node alone: another that shows it is refused. Without, it is good for any node of the cluster.
With --force a renewed certificate replaces the old one. Where ca.pem has another authority of the cluster it stays beside
the new one, because nodes trust both while one is replaced; see docs/security.md.
Daemons ask who a peer is, not where: --host is for other tools that look for host names.`,
		Example: `  dsmd cert node --ca authority --out node-0 --id 0
  dsmd cert node --ca authority --out any --host '*.dsmd.default.svc'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			valid, err := flags.valid()
			switch {
			case err != nil:
			case authority == "":
				err = errors.New("--ca is missing: say in which directory \"dsmd cert ca\" has written")
			case cmd.Flags().Changed("id") && node.ID < 0:
				err = fmt.Errorf("--id %d: ids start at 0", node.ID)
			}
			if err != nil {
				return usageError(cmd, err)
			}
			a, err := certs.OpenAuthority(authority)
			if err != nil {
				return err
			}
			node.Valid = valid
			if _, err := a.Issue(flags.out, node, flags.force); err != nil {
				return err
			}
			cert, key := certs.NodeFiles(node.ID)
			trusts, err := certs.CountAuthorities(filepath.Join(flags.out, certs.AuthorityFile))
			if err != nil {
				return err
			}
			whom := certs.AuthorityFile + " says whom the node trusts"
			if trusts > 1 {
				whom += fmt.Sprintf(": %d authorities, until all nodes have certificates of the new one; then give them %s alone", trusts, filepath.Join(authority, certs.AuthorityFile))
			}
			return written(cmd, flags.out, whom, cert+" is its certificate", key+" is its key: nobody else may have it")
		},
	}
	cmd.Flags().StringVar(&authority, "ca", "", "`DIR` of the authority")
	cmd.Flags().IntVar(&node.ID, "id", certs.AnyNode, "the one node that it is good for (default: any)")
	cmd.Flags().StringSliceVar(&node.Hosts, "host", nil, "`NAME` or address of the node, for other tools; may be repeated")
	flags.register(cmd, "write to this `DIR`", int(certs.NodeValidity/day))
	cmd.Flags().Lookup("id").DefValue = "0" // which pflag does not print; no number says "any"
	return cmd
}

func newCertGossipKey() *cobra.Command {
	return newCertKey("gossip-key", "Make the key by which the gossip of a cluster is encrypted", "gossip.key", certs.WriteSecret)
}

func newCertSecret() *cobra.Command {
	return newCertKey("secret", "Make the secret by which the nodes of a cluster without certificates know each other", "cluster.secret", certs.WriteSecret)
}

// newCertKey is a command that makes a file which all nodes have alike.
func newCertKey(name, short, example string, write func(path string, force bool) error) *cobra.Command {
	flags := certFlags{days: 1}
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Example: "  dsmd cert " + name + " --out " + example,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := flags.valid(); err != nil {
				return usageError(cmd, err)
			}
			if err := write(flags.out, flags.force); err != nil {
				return err
			}
			return written(cmd, filepath.Dir(flags.out), filepath.Base(flags.out)+" is for every node, the same on all: nobody else may have it")
		},
	}
	flags.register(cmd, "write to this `FILE`", 0)
	return cmd
}

func newCertShow() *cobra.Command {
	return &cobra.Command{
		Use:     "show FILE",
		Short:   "Show what a certificate says",
		Example: "  dsmd cert show node-0/node-0.pem",
		Args:    exactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return certs.Show(cmd.OutOrStdout(), args[0]) },
	}
}

// written says what was made, and what it is for.
func written(cmd *cobra.Command, dir string, files ...string) error {
	for _, f := range files {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(dir, f)); err != nil {
			return err
		}
	}
	return nil
}
