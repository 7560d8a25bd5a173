"""Real deployments over TLS: what is made before, and who calls whom during a run.

Before a run, at the coordinator: consortium.py reads who takes part, kits.py makes a folder for
each party (certificates.py), wheelhouse.py collects what is installed. check_kit.py, at every
party, tests what can go wrong (check_connection.py).

During a run a message takes this way, from top to bottom, and its answer the same way back:

    coordinator's machine
      coordinator.py   the ServerApp: the round loop of federation/, with the engine below
      network.py       NetworkEngine.exchange: which sites, how long (site_contacts.py)
      coordinator.py   FlowerTransport.send: messages.encode
      superlink.py     stores it until the hospital's node, whose key it admits, asks for it
    hospital's machine, connecting process (no torch)
      node.py          answer_next: fetches the message
      ledger.py        Gate.ask: was it agreed to? On the way back: writes down what leaves
      worker.py        WorkerClient.ask: through a pipe; starts the worker if there is none
    hospital's machine, worker process (torch, images, model)
      worker.py        serve: one message at a time
      answers.py       ResidentSite.answer: messages.decode, terms, data
      federation/      SiteRunner.run_round: the site's work, as in every engine

messages.py says what a message is, settings.py what a hospital decides (site.toml), delivery.py
brings the final model home. The worker's bytes go to Flower unread.
"""
