// Enforce the network policies of a cluster on the packets of this network namespace, with the controller that SIG Network
// keeps for it. Its own program reads the kubeconfig of a pod only.
package main

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

func run(kubeconfig, node string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	watched := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(
		client,
		watched.Networking().V1().NetworkPolicies(),
		watched.Core().V1().Namespaces(),
		watched.Core().V1().Pods(),
		nil, nil, nil, nil,
		networkpolicy.Config{NodeName: node, NRIdisabled: true},
	)
	if err != nil {
		return err
	}
	watched.Start(ctx.Done())
	return controller.Run(ctx)
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		klog.Exit(err)
	}
}
